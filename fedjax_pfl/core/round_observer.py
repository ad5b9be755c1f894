"""What a round does, observed while it is traced: forward passes, steps, non-finite values."""

import jax
import jax.numpy as jnp

from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import Mask, PerClient, Rows


class RoundObserver:
    """Counts and names of one round, collected while it is traced.

    Attributes:
      forward_samples: int32 [N], forward passes of one sample; None if there were none.
      nonfinite: bool [N], clients whose new values `Cohort.scatter` refused because they were not
        finite; None if nothing was scattered.
      steps: int32 [N], local steps of `Context.train` and `Context.full_gradient`, or None. Steps
        of an algorithm's own loops are not included.
      schedules: schedules used by `Context.train`.
      purposes: purposes used by `Context.train`, outside of an algorithm's own loops and branches.
      uploads: what was sent, by each call of `Context.upload`.
      rule_acted: bool [], whether a robust rule gave other weights than the algorithm; None if
        that is unknown.
      weights: [M] or a mixing matrix: the weights in place of the algorithm's, by a robust rule or
        by uniform weighting; None if there are none.
    """

    def __init__(self):
        self.forward_samples: jax.Array | None = None
        self.nonfinite: PerClient | None = None
        self.steps: jax.Array | None = None
        self.schedules: set[Schedule] = set()
        self.purposes: list[str] = []
        self.uploads: list[str] = []
        self.rule_acted: jax.Array | None = None
        self.weights: jax.Array | None = None
        self._trainings = 0
        self._trace = trace_state()

    def count_forward(self, rows: Rows, samples: jax.Array, num_clients: int) -> None:
        """Add forward passes of `samples` [M] single samples of the clients `rows` [M].

        Raises:
          TypeError: called within a branch or a loop, whose number of executions is unknown.
        """
        if trace_state() != self._trace:
            raise TypeError(
                "Forward passes (of ctx.loss_matrix, ctx.count_forward) can't be counted within an "
                "algorithm's own lax.cond, loop or vmap: call it outside, with active=[M] for "
                "the clients that score in this round."
            )
        none = jnp.zeros((num_clients,), jnp.int32)
        before = none if self.forward_samples is None else self.forward_samples
        self.forward_samples = before.at[rows].add(samples)

    def record_nonfinite(self, cohort: Cohort, rows: Mask) -> None:
        """Record that the new values of the members `rows` [M] were not finite.

        Nothing is recorded within an algorithm's own loop or branch.
        """
        if trace_state() == self._trace:
            named = cohort.spread(rows, False)
            self.nonfinite = named if self.nonfinite is None else self.nonfinite | named

    def count_steps(self, before: Cohort, after: Cohort) -> None:
        """Add the local steps between two states of a cohort.

        Nothing is added within an algorithm's own loop or branch.
        """
        if trace_state() == self._trace:
            taken = after.spread(after.steps - before.steps, 0)
            self.steps = taken if self.steps is None else self.steps + taken

    def next_noise_index(self) -> int:
        """Return the index of the next local training, folded into the key of its noise."""
        self._trainings += 1
        return self._trainings - 1

    def record_rule(self, before: jax.Array, after: jax.Array | None) -> None:
        """Record whether a robust rule changed weights, apart from rounding.

        Nothing is recorded for rules by coordinates, and within an algorithm's own loop or branch.
        """
        if after is None or trace_state() != self._trace:
            return
        changed = jnp.any(jnp.abs(after - before) > 1e-3 * jnp.max(jnp.abs(before)))
        self.rule_acted = changed if self.rule_acted is None else self.rule_acted | changed

    def record_training(self, purpose: str, schedule: Schedule) -> None:
        """Record the purpose and the schedule of a call of `Context.train`."""
        self.schedules.add(schedule)
        if trace_state() == self._trace:
            self.purposes.append(purpose)
