"""Forward passes that a round takes beside its local steps, counted as they happen."""

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
        self._trace = _trace()

    def add(self, rows: Rows, samples: jax.Array, num_clients: int) -> None:
        """Adds `samples` [M] of the clients `rows` [M].

        Raises:
          TypeError: within a branch or a loop, of which nobody knows how often it is taken.
        """
        if _trace() != self._trace:
            raise TypeError(
                "ctx.loss_matrix counts what it computes, and can't within lax.cond, a loop or "
                "vmap of an algorithm's own: call it outside, with active=[M] for the clients "
                "that score in this round."
            )
        none = jnp.zeros((num_clients,), jnp.int32)
        before = none if self.samples is None else self.samples
        self.samples = before.at[rows].add(samples)


def _trace():
    return core.get_opaque_trace_state(convention="fedjax_pfl")
