"""Counts the forward passes that a round takes beside its local steps, while it is traced."""

import jax
import jax.numpy as jnp
from jax.extend import core

from fedjax_pfl.typing import Rows


class Tally:
    """Forward passes of one sample, of each client in one round; filled while it is traced.

    Attributes:
      samples: int32 [N], or None where there were none.
    """

    def __init__(self):
        self.samples: jax.Array | None = None
        self._trace = trace_state()

    def add(self, rows: Rows, samples: jax.Array, num_clients: int) -> None:
        """Adds `samples` [M] of the clients `rows` [M].

        Raises:
          TypeError: within a branch or a loop, whose number of runs is unknown.
        """
        if trace_state() != self._trace:
            raise TypeError(
                "Forward passes (of ctx.loss_matrix, ctx.count_forward) can't be counted within an "
                "algorithm's own lax.cond, loop or vmap: call it outside, with active=[M] for "
                "the clients that score in this round."
            )
        none = jnp.zeros((num_clients,), jnp.int32)
        before = none if self.samples is None else self.samples
        self.samples = before.at[rows].add(samples)


def trace_state():
    """What tells the body of a loop, branch or vmap from what is around it, while traced."""
    return core.get_opaque_trace_state(convention="fedjax_pfl")
