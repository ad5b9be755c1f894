"""What a round does, observed while it is traced: forward passes, steps, non-finite values."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.errors import UNCOUNTED, UncountedRelease
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import Mask, PerClient, Rows

OWN_LOOP = "in a loop, branch or jit of an algorithm's own"


class NoisyTraining(NamedTuple):
    """A local loop with noisy gradients in a round.

    Attributes:
      minibatches: purpose of the key that draws its minibatches.
      schedule: the loop's schedule.
      gradients: of one local step.
      per_batch: the most of them on one minibatch.
      at_most: upper bounds; each maps the number of rounds to the number of rounds in which the
        loop can run.
    """

    minibatches: str
    schedule: Schedule
    gradients: int
    per_batch: int
    at_most: tuple[Callable[[int], int], ...] = ()

    def times(self, rounds: int) -> int:
        """Return in how many of `rounds` rounds it happens, at most."""
        return max(min([rounds, *(bound(rounds) for bound in self.at_most)]), 0)


class Upload(NamedTuple):
    """A call of `Context.upload` in a round.

    Attributes:
      what: its name.
      compressed: whether compressors act on it.
    """

    what: str
    compressed: bool


class RoundFacts(NamedTuple):
    """What a round does, found by tracing it.

    Attributes:
      schedules: of its local loops over training samples.
      trainings: its local loops with noisy gradients.
      uploads: what members send.
      reads_num_rounds: whether it depends on the number of rounds.
    """

    schedules: frozenset[Schedule]
    trainings: tuple[NoisyTraining, ...]
    uploads: tuple[Upload, ...]
    reads_num_rounds: bool


class RoundObserver:
    """Counts and names of one round, collected while it is traced.

    What an algorithm does in a loop or branch of its own happens an unknown number of times. It is
    counted within `Context.when` and `Context.in_turn` only.

    Args:
      outside: name of a function that runs outside of rounds, in which no gradient with noise is
        allowed; "" for a round.

    Attributes:
      forward_samples: int32 [N], forward passes of one sample; None if there were none.
      nonfinite: bool [N], clients whose new values `Cohort.scatter` refused because they were not
        finite; None if nothing was scattered.
      steps: int32 [N], local steps of `Context.train` and `Context.full_gradient`, or None; under
        sample-level privacy also gradients with noise of `Context.run_clients`.
      schedules: schedules of local loops over training samples.
      purposes: purposes used by `Context.train`, outside of an algorithm's own loops and branches,
        without those that take minibatches a second time on purpose.
      trainings: local loops with noisy gradients.
      uploads: calls of `Context.upload`.
      sums: calls of `Context.aggregate` where client sampling amplifies privacy.
      amplified: whether client sampling amplifies privacy.
      sent: int32 [N], uploads that cost privacy, or None.
      cohort: the round's cohort, or None if any may upload and train.
      rule_acted: bool [], whether a robust rule gave other weights than the algorithm; None if
        that is unknown.
      counted: identity of the JAX trace in which counting is valid: the round's, or that of the
        enclosing `Counting`.
      sender: the member whose turn it is, which alone may upload and train, or None.
      weights: [M] or a mixing matrix: the weights in place of the algorithm's, by a robust rule or
        by uniform weighting; None if there are none.
    """

    def __init__(self, outside: str = ""):
        self.outside = outside
        self.forward_samples: jax.Array | None = None
        self.nonfinite: PerClient | None = None
        self.steps: jax.Array | None = None
        self.schedules: set[Schedule] = set()
        self.purposes: list[str] = []
        self.trainings: list[NoisyTraining] = []
        self.uploads: list[Upload] = []
        self.sums = 0
        self.amplified = False
        self.sent: jax.Array | None = None
        self.cohort: Cohort | None = None
        self.rule_acted: jax.Array | None = None
        self.weights: jax.Array | None = None
        self.counted = trace_state()
        self.sender: Cohort | None = None
        self._trainings = self._loops = 0
        self._calls = self._noisy = (0, 0)
        self._trace = trace_state()

    def count_forward(self, rows: Rows, samples: jax.Array, num_clients: int) -> None:
        """Add forward passes of `samples` [M] single samples of the clients `rows` [M].

        Raises:
          TypeError: called within a branch or a loop, whose number of executions is unknown.
        """
        if trace_state() != self.counted:
            raise TypeError(
                "Forward passes (of ctx.loss_matrix, ctx.count_forward) can't be counted within an "
                "algorithm's own lax.cond, loop or vmap: take ctx.when, or call it outside, with "
                "active=[M] for the clients that score in this round."
            )
        none = jnp.zeros((num_clients,), jnp.int32)
        before = none if self.forward_samples is None else self.forward_samples
        self.forward_samples = before.at[rows].add(samples)

    @property
    def counts_here(self) -> bool:
        """Whether code that is traced now runs once a round, or within `Counting`."""
        return trace_state() == self.counted

    def drawn(self, cohort: Cohort) -> Cohort:
        """Return the cohort of an upload without clients that this round has not drawn."""
        assert self.cohort is not None
        drawn = self.cohort.spread(self.cohort.mask, False)[cohort.rows]
        return replace(cohort, mask=cohort.mask & drawn)

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
        if trace_state() == self.counted:
            self._add_steps(after.spread(after.steps - before.steps, 0))

    def _add_steps(self, taken: PerClient) -> None:
        self.steps = taken if self.steps is None else self.steps + taken

    def count_calls(self, total: int, per_batch: int) -> None:
        """Note the gradients with noise of a local step so far, and the most on one minibatch."""
        before = self._calls
        self._calls = max(before[0], total), max(before[1], per_batch)

    def count_gradients(self, rows: Rows, steps: jax.Array, num_clients: int) -> None:
        """Add the gradients with noise of a local loop of `steps` [M] of the clients `rows` [M].

        Raises:
          UncountedRelease: there are some, and how often the loop runs is unknown, or a client may
            be in it twice.
        """
        self.check_recorded()
        self._noisy, self._calls = self._calls, (0, 0)
        total, _ = self._noisy
        if not total:
            return
        if self.outside:
            raise UncountedRelease(
                f"Local training in {self.outside} {UNCOUNTED}: train in a round."
            )
        if trace_state() != self.counted:
            raise UncountedRelease(
                f"Local training {OWN_LOOP} {UNCOUNTED}: train outside of it, or within ctx.when "
                "or ctx.in_turn."
            )
        everyone = isinstance(rows, np.ndarray) and len(set(rows.tolist())) == len(rows)
        self._check_members("Local training", rows, everyone)
        taken = jnp.zeros((num_clients,), jnp.int32).at[rows].add((total * steps).astype(jnp.int32))
        self._add_steps(taken)

    def record_upload(self, upload: Upload, cohort: Cohort, private: bool) -> None:
        """Record what the members of a cohort send.

        Args:
          upload: what is sent.
          cohort: who sends.
          private: whether each upload costs privacy.

        Raises:
          UncountedRelease: it costs privacy, and how often a member sends it is unknown.
        """
        what = f"The upload {upload.what!r}"
        if private and trace_state() != self.counted:
            raise UncountedRelease(
                f"{what} {OWN_LOOP} {UNCOUNTED}: call ctx.upload outside of it, or within ctx.when "
                "or ctx.in_turn."
            )
        self.uploads.append(upload)
        if not private:
            return
        self._check_members(what, cohort.rows, cohort.in_place)
        none = jnp.zeros((cohort.num_clients,), jnp.int32)
        sent = none if self.sent is None else self.sent
        self.sent = sent.at[cohort.rows].add(cohort.mask.astype(jnp.int32))

    def _check_members(self, what: str, rows: Rows, in_place: bool) -> None:
        """Raise `UncountedRelease` unless `rows` are of clients that can't be there twice."""
        allowed = self.cohort if self.sender is None else self.sender
        if allowed is None or rows is allowed.rows or (in_place and self.sender is None):
            return
        if self.sender is not None:
            raise UncountedRelease(
                f"{what} within ctx.in_turn must be of the member whose turn it is, in no second "
                "ctx.in_turn: pass the member's cohort."
            )
        raise UncountedRelease(
            f"{what} is of clients by their rows, of which two may be one with the same noise: "
            "pass ctx.cohort, a part of it by cohort.masked, or ctx.cohort_of()."
        )

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

    def check_recorded(self) -> None:
        """Raise `UncountedRelease` if a local loop with noisy gradients was not recorded."""
        if self._noisy[0]:
            raise UncountedRelease(
                f"Local training by training.run_clients {UNCOUNTED}: call ctx.run_clients."
            )

    def next_loop(self) -> int:
        """Return the number of the next local loop, which is folded into the key of its noise."""
        self._loops += 1
        return self._loops - 1

    def record_loop(self, minibatches: str, schedule: Schedule, training: bool = True) -> None:
        """Record a local loop and the noisy gradients that it computed.

        Args:
          minibatches: purpose of the key that draws its minibatches.
          schedule: the loop's schedule.
          training: whether it is over the clients' training samples.

        Raises:
          UncountedRelease: there are gradients with noise, on minibatches that are not drawn as
            accounting needs it.
        """
        (total, per_batch), self._noisy = self._noisy, (0, 0)
        if training:
            self.schedules.add(schedule)
        if total and not (training and schedule.shuffle):
            raise UncountedRelease(
                f"Local training on minibatches of {schedule} that are not drawn at random from a "
                f"client's training samples {UNCOUNTED}: take a shuffled schedule, and no split."
            )
        if total:
            self.trainings.append(NoisyTraining(minibatches, schedule, total, per_batch))

    def record_purpose(self, purpose: str) -> None:
        """Record the purpose of a call of `Context.train`."""
        if trace_state() == self._trace:
            self.purposes.append(purpose)
