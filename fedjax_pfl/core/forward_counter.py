"""Observations made while a round is traced: forward passes, local steps, non-finite values."""

import jax
import jax.numpy as jnp
from jax.extend import core

from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.typing import Mask, PerClient, Rows


class ForwardCounter:
    """What one round does to each client beside its local steps; filled while it is traced.

    Attributes:
      samples: int32 [N], forward passes of one sample; None if there were none.
      nonfinite: bool [N], the clients whose new values `Cohort.scatter` refused because they were
        not finite; None if nothing was scattered.
      steps: int32 [N], local steps that `Context.train` and `Context.full_gradient` took; None if
        they were not called. Those of an algorithm's own loops are not among them.
      schedules: those of `Context.train`.
    """

    def __init__(self):
        self.samples: jax.Array | None = None
        self.nonfinite: PerClient | None = None
        self.steps: jax.Array | None = None
        self.schedules: set[Schedule] = set()
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

    def refused(self, cohort: Cohort, rows: Mask) -> None:
        """Records that the new values of the members `rows` [M] were not finite.

        Within an algorithm's own loop or branch nothing is recorded.
        """
        if trace_state() == self._trace:
            named = cohort.spread(rows, False)
            self.nonfinite = named if self.nonfinite is None else self.nonfinite | named

    def took(self, before: Cohort, after: Cohort) -> None:
        """Adds the steps that `after` has and the same members `before` had not.

        Within an algorithm's own loop or branch nothing is added.
        """
        if trace_state() == self._trace:
            taken = after.spread(after.steps - before.steps, 0)
            self.steps = taken if self.steps is None else self.steps + taken


def trace_state():
    """What tells the body of a loop, branch or vmap from what is around it, while traced."""
    return core.get_opaque_trace_state(convention="fedjax_pfl")
