"""What a round does, observed while it is traced: forward passes, steps, non-finite values."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.errors import UndeclaredRelease
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import Mask, PerClient, Rows

UNTRUE = "would state a false epsilon"  # end of sentences
OWN_LOOP = "in a loop, branch or jit of an algorithm's own, whose number of executions is unknown,"


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
      schedules: schedules used by `Context.train`.
      purposes: purposes used by `Context.train`, outside of an algorithm's own loops and branches.
      minibatches: purposes of the trainings with noisy gradients, which draw minibatches by them.
      noisy_schedules: their schedules.
      uploads: what was sent, by each call of `Context.upload`.
      sums: calls of `Context.aggregate` under distributed noise.
      amplified: whether the stated epsilon counts on who is drawn.
      sent: int32 [N], uploads that cost privacy, or None.
      cohort: the round's cohort, or None if any may upload and train.
      rule_acted: bool [], whether a robust rule gave other weights than the algorithm; None if
        that is unknown.
      counted: token of the code, of the round itself or within `Counting`, in which steps, forward
        passes and uploads are counted.
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
        self.minibatches: list[str] = []
        self.noisy_schedules: set[Schedule] = set()
        self.uploads: list[str] = []
        self.sums = 0
        self.amplified = False
        self.sent: jax.Array | None = None
        self.cohort: Cohort | None = None
        self.rule_acted: jax.Array | None = None
        self.weights: jax.Array | None = None
        self.counted = trace_state()
        self.sender: Cohort | None = None
        self._trainings = self._calls = 0
        self._noisy = False
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

    def count_calls(self, most: int) -> None:
        """Note that a local step computes at least `most` gradients with noise."""
        self._calls = max(self._calls, most)

    def count_gradients(self, rows: Rows, steps: jax.Array, num_clients: int) -> None:
        """Add the gradients with noise of a local loop of `steps` [M] of the clients `rows` [M].

        Raises:
          UndeclaredRelease: there are some, and how often the loop runs is unknown, or a client may
            be in it twice.
        """
        calls, self._calls = self._calls, 0
        self._noisy = calls > 0
        if not self._noisy:
            return
        if self.outside:
            raise UndeclaredRelease(
                f"Local training in {self.outside} is not counted, which {UNTRUE}: train in a "
                "round."
            )
        if trace_state() != self.counted:
            raise UndeclaredRelease(
                f"Local training {OWN_LOOP} {UNTRUE}: train outside of it, or "
                "within ctx.when or ctx.in_turn."
            )
        everyone = isinstance(rows, np.ndarray) and len(set(rows.tolist())) == len(rows)
        self._check_members("Local training", rows, everyone)
        taken = jnp.zeros((num_clients,), jnp.int32).at[rows].add((calls * steps).astype(jnp.int32))
        self._add_steps(taken)

    def record_upload(self, what: str, cohort: Cohort, private: bool) -> None:
        """Record what the members of a cohort send.

        Args:
          what: the name of the upload.
          cohort: who sends.
          private: whether each upload costs privacy.

        Raises:
          UndeclaredRelease: it costs privacy, and how often a member sends it is unknown.
        """
        if private and trace_state() != self.counted:
            raise UndeclaredRelease(
                f"The upload {what!r} {OWN_LOOP} {UNTRUE}: call ctx.upload "
                "outside of it, or within ctx.when or ctx.in_turn."
            )
        self.uploads.append(what)
        if not private:
            return
        self._check_members(f"The upload {what!r}", cohort.rows, cohort.in_place)
        none = jnp.zeros((cohort.num_clients,), jnp.int32)
        sent = none if self.sent is None else self.sent
        self.sent = sent.at[cohort.rows].add(cohort.mask.astype(jnp.int32))

    def _check_members(self, what: str, rows: Rows, in_place: bool) -> None:
        """Raise `UndeclaredRelease` unless `rows` are of clients that can't be there twice."""
        allowed = self.cohort if self.sender is None else self.sender
        if allowed is None or rows is allowed.rows or (in_place and self.sender is None):
            return
        if self.sender is not None:
            raise UndeclaredRelease(
                f"{what} within ctx.in_turn must be of the member whose turn it is, in no second "
                "ctx.in_turn: pass the member's cohort."
            )
        raise UndeclaredRelease(
            f"{what} is of clients by their rows, of which two may be one with the same noise, and "
            f"{UNTRUE}: pass ctx.cohort, a part of it by cohort.masked, or ctx.cohort_of()."
        )

    def counting(
        self, action: Callable[..., Any], num_clients: int, sender: Cohort | None = None
    ) -> "Counting":
        """Return a branch, or the body of a loop, that returns (its result, what is counted)."""
        return Counting(self, action, num_clients, sender)

    def add(self, counts: dict[str, PerClient], *actions: "Counting") -> None:
        """Add what traced actions count, of which one was executed, or one for each member."""
        for name, count in counts.items():
            if any(name in action.counts for action in actions):
                before = getattr(self, name)
                setattr(self, name, count if before is None else before + count)
        for name in NAMES:
            most = Counter[str]()
            for action in actions:
                most |= Counter(action.names[name])
            setattr(self, name, [*getattr(self, name), *most.elements()])

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

    def record_minibatches(self, purpose: str, schedule: Schedule) -> None:
        """Record the purpose and the schedule of a local loop if it computed noisy gradients."""
        if self._noisy:
            self.minibatches.append(purpose)
            self.noisy_schedules.add(schedule)
        self._noisy = False

    def record_training(self, purpose: str, schedule: Schedule) -> None:
        """Record the purpose and the schedule of a call of `Context.train`."""
        self.schedules.add(schedule)
        if trace_state() == self._trace:
            self.purposes.append(purpose)


COUNTS, NAMES = ("steps", "forward_samples", "sent"), ("uploads", "minibatches")
WHERE = (*NAMES, "weights", "counted", "sender")


class Counting:
    """A branch, or the body of a loop, whose local steps, forward passes and uploads are counted.

    Args:
      observer: the observer of the round.
      action: what is called.
      num_clients: N.
      sender: the member whose turn it is, or None.

    Attributes:
      counts: which of `COUNTS` there are, once it is traced.
      names: what was sent, and the purposes of trainings with noise.
    """

    def __init__(
        self,
        observer: RoundObserver,
        action: Callable[..., Any],
        num_clients: int,
        sender: Cohort | None = None,
    ):
        self.observer, self.action, self.num_clients = observer, action, num_clients
        self.sender, self.counts, self.names = sender, set[str](), dict[str, list[str]]()

    def __call__(self, *operands: Any) -> tuple[Any, dict[str, PerClient]]:
        """Return (the action's result, its counts, int32 [N] each)."""
        observer = self.observer
        held = {name: getattr(observer, name) for name in (*COUNTS, *WHERE)}
        sender = self.sender if observer.sender is None else observer.sender
        if self.sender is not None and observer.sender is not None:
            # Nobody: the turns within each member's turn are as many as members.
            sender = replace(self.sender, rows=jnp.zeros(0, jnp.int32))
        vars(observer).update(dict.fromkeys(COUNTS), weights=None, sender=sender)
        vars(observer).update({name: [] for name in NAMES})
        observer.counted = trace_state()
        try:
            result = self.action(*operands)
            found = {name: getattr(observer, name) for name in COUNTS}
            # Some transformations trace twice: the last time counts.
            self.counts = {name for name, count in found.items() if count is not None}
            self.names = {name: getattr(observer, name) for name in NAMES}
        finally:
            vars(observer).update(held)
        none = jnp.zeros((self.num_clients,), jnp.int32)
        return result, {name: none if count is None else count for name, count in found.items()}
