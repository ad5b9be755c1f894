"""Which clients take part in a round: sampling, stragglers, and their masks.

Everything here is a pure function of (round, seed, permanent client id), so all algorithms of a
comparison have the same cohorts, and no algorithm keeps any of it in its state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.federation.config_field import Group, option
from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.conversions import convert
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Rows, Tree

STRAGGLER_SCHEDULES = ("code", "paper")


@struct
class Cohort:
    """The M clients of one round; leaves lead with the cohort axis.

    Attributes:
      rows: int32 [M], their positions on the client axis, ascending.
      ids: int32 [M], their permanent ids: random keys fold these in, never positions.
      starts: bool [M], begins local training in this round.
      arrives: bool [M], an upload of this client reaches the server in this round.
      staleness: int32 [M], rounds between the start of the arriving upload and now.
      phase: int32 [M], position in the client's straggler cycle (0 for the punctual).
      delay: int32 [M], rounds that a straggler's first upload is late (0 for the punctual).
      mask: bool [M], the members for a synchronous algorithm: those that start and arrive in this
        round, without those whose training went non-finite.
      diverged: bool [M], members whose training went non-finite in this round.
      earlier_starts: int32 [M], rounds before this one in which the client began local training;
        0 under sampling, where no formula gives it.
      steps: int32 [M], minibatch gradients that the client has computed in this round so far; local
        training adds to them, also for clients that diverge.
      num_clients: N.
      in_place: whether the cohort has all clients, in the order of the client axis.
      complete: whether the mask is known to be true for all members, so that no lane waits. To
        leave out members use `keep`, which updates this; do not replace the mask.
      whole: int32, the rows of the cohort of which this is a part (`member`); None for a whole one.
      observer: is told of rows that `scatter` refuses, `observer.refused(cohort, rows)`, while a
        round is traced; None outside of one.
    """

    rows: jax.Array
    ids: jax.Array
    starts: jax.Array
    arrives: jax.Array
    staleness: jax.Array
    phase: jax.Array
    delay: jax.Array
    mask: jax.Array
    diverged: jax.Array
    earlier_starts: jax.Array
    steps: jax.Array
    num_clients: int = static()
    in_place: bool = static(default=False)
    complete: bool = static(default=False)
    whole: jax.Array | None = None
    observer: Any = static(default=None)

    @property
    def size(self) -> int:
        return self.rows.shape[0]

    @property
    def places(self) -> Rows:
        """`rows`, as a NumPy array where these are all clients in order."""
        return np.arange(self.num_clients, dtype=np.int32) if self.in_place else self.rows

    def gather(self, stack: Tree) -> Tree:
        """Rows of the cohort: leaves [N, ...] give [M, ...]."""
        trees.check_rows("the gathered stack", stack, self.num_clients)
        return stack if self.in_place else trees.take(stack, self.rows)

    def scatter(self, stack: Tree, values: Tree, where: jax.Array | None = None) -> Tree:
        """Writes `values` [M, ...] into the stack [N, ...] for the members of the mask.

        Absent and diverged clients keep their values bit by bit. So do members whose new values
        are not finite; the round's record names them ("nonfinite"). `where` [M] replaces the mask
        for algorithms with stale uploads.
        """
        trees.check_rows("the scattered values", values, self.size)
        where, finite = self.mask if where is None else where, trees.rows_finite(values, self.size)
        if self.observer is not None:
            self.observer.refused(self, where & ~finite)
        where = where & finite
        kept = trees.where(where, values, self.gather(stack))
        return kept if self.in_place else trees.put(stack, self.rows, kept)

    def member(self, k: jax.Array | int) -> "Cohort":
        """The cohort of the single member at position `k`, for work on one after the other."""
        whole = self.rows if self.whole is None else self.whole
        own = jax.tree.map(lambda leaf: leaf[k][None], replace(self, whole=None))
        return replace(own, in_place=False, whole=whole)

    def order(self, key: jax.Array) -> jax.Array:
        """int32 [M]: the positions of the members in a random order, by their permanent ids."""
        lots = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype="uint32"))
        return jnp.argsort(lots(self.ids)).astype(jnp.int32)

    def keep(self, finite: jax.Array, steps: jax.Array | int = 0) -> "Cohort":
        """The cohort without the members that are not `finite` [M]; they count as diverged.

        `steps` [M] are added to the gradients that each has computed.
        """
        mask, diverged = self.mask & finite, self.diverged | ~finite
        return replace(self.counted(steps), mask=mask, diverged=diverged, complete=False)

    def counted(self, steps: jax.Array | int) -> "Cohort":
        """The same cohort, `steps` [M] added to the gradients that each has computed."""
        return replace(self, steps=(self.steps + steps).astype(jnp.int32))

    def at_work(self, members: jax.Array) -> "Cohort":
        """The cohort with `members` [M] (late ones too), without the diverged, as its mask."""
        return replace(self, mask=members & ~self.diverged, complete=False)

    def on_schedule(self, t: jax.Array, schedule: str) -> "Cohort":
        """The cohort of round `t` if stragglers follow that schedule (`Participation`)."""
        times = _times(t, self.delay, schedule)
        return replace(self, **times) if self.in_place else self  # under sampling no client is late

    def dropping_late(self) -> "Cohort":
        """The cohort if late uploads are dropped: a straggler waits first, and begins in the
        round in which its late upload would have come.
        """
        begun = (self.phase > 0) & (self.phase <= self.delay)  # not yet, in this cohort
        earlier = self.earlier_starts - begun
        return replace(self, starts=self.arrives, arrives=self.mask, earlier_starts=earlier)

    def flushed(self, now: jax.Array) -> "Cohort":
        """The cohort in which, if `now`, uploads on their way arrive at once."""
        waiting = (self.phase > 0) & (self.phase < self.delay) & now
        staleness = jnp.where(waiting, self.phase, self.staleness)
        return replace(self, arrives=self.arrives | waiting, staleness=staleness)

    def spread(self, values: jax.Array, fill: float) -> jax.Array:
        """Per-member values [M, ...] as per-client values [N, ...], `fill` for the absent."""
        if self.in_place:
            return values
        full = jnp.full((self.num_clients, *values.shape[1:]), fill, values.dtype)
        return full.at[self.rows].set(values)

    def expand(self, weights: jax.Array) -> jax.Array:
        """A mixing matrix of the cohort, [..., M, M] or [..., M, N], as [..., N, N].

        A client that received nothing (absent, diverged, or with a row of zeros) kept its model:
        its row is the identity's.
        """
        own = ~self.mask | ~jnp.any(weights != 0, axis=-1)
        identity = jnp.eye(self.num_clients, dtype=weights.dtype)
        all_senders = weights.shape[-1] == self.num_clients
        kept = identity[self.rows] if all_senders else jnp.eye(self.size, dtype=weights.dtype)
        weights = jnp.where(own[..., None], kept, weights)
        if self.in_place:
            return weights
        full = jnp.broadcast_to(identity, (*weights.shape[:-2], *identity.shape))
        if all_senders:
            return full.at[..., self.rows, :].set(weights)
        return full.at[..., self.rows[:, None], self.rows[None, :]].set(weights)

    def gather_pairs(self, pairs: Tree) -> Tree:
        """Rows and columns of the cohort: leaves [N, N, ...] give [M, M, ...]."""
        if self.in_place:
            return pairs
        return jax.tree.map(lambda leaf: leaf[self.rows[:, None], self.rows[None, :]], pairs)

    def scatter_pairs(self, pairs: Tree, values: Tree) -> Tree:
        """Writes `values` [M, M, ...] into the pairs [N, N, ...] where both take part."""
        both = self.mask[:, None] & self.mask[None, :]
        kept = trees.where(both, values, self.gather_pairs(pairs))
        if self.in_place:
            return kept
        at = (self.rows[:, None], self.rows[None, :])
        return jax.tree.map(lambda leaf, new: leaf.at[at].set(new), pairs, kept)


@struct
class Participation:
    """How cohorts are formed.

    Attributes:
      delay: int32 [N], 0 for punctual clients; a straggler's first upload arrives that much later.
      cohort_size: M, clients sampled in each round, uniformly and without replacement.
      punctual: whether there are no stragglers.
      schedule: cycle of a straggler with delay d. "code" (period d + 2, the published PLGA code):
        starts in phase 0, that upload arrives in phase d, and in phase d + 1 it starts and arrives
        like a punctual client. "paper" (period d + 1): starts in phase 0, arrives in phase d.
    """

    delay: jax.Array
    cohort_size: int = static()
    punctual: bool = static(default=True)
    schedule: str = static(default="code")

    def cohort(self, key: jax.Array, t: jax.Array, ids: jax.Array) -> Cohort:
        """The cohort of round `t` (counted from 0); `key` is the run's, `ids` int32 [N]."""
        num_clients, size = ids.shape[0], self.cohort_size
        if size == num_clients:
            rows = jnp.arange(num_clients, dtype=jnp.int32)
        else:
            lots = keys.lots(jax.random.fold_in(key, t), ids)
            rows = jnp.sort(jax.lax.top_k(-lots, size)[1]).astype(jnp.int32)
        delay = jnp.asarray(self.delay)[rows]
        times = _times(t, delay, self.schedule)
        if size < num_clients:
            times["earlier_starts"] = jnp.zeros_like(delay)
        return Cohort(
            rows=rows,
            ids=ids[rows],
            delay=jnp.asarray(delay),
            diverged=jnp.zeros((size,), bool),
            steps=jnp.zeros((size,), jnp.int32),
            num_clients=num_clients,
            in_place=size == num_clients,
            complete=size == num_clients and self.punctual,
            **times,
        )


def _times(t: jax.Array, delay: jax.Array, schedule: str) -> dict[str, jax.Array]:
    """A cohort's fields in round `t`, [M] each, for clients late by `delay` [M]."""
    late = delay > 0
    period = jnp.where(late, delay + (2 if schedule == "code" else 1), 1)
    phase = t % period
    # A straggler starts in phase 0; with "code" also in the last phase of its cycle.
    a_cycle = jnp.where(late & (schedule == "code"), 2, 1)
    fresh = ~late | (phase == delay + 1)
    return {
        "starts": fresh | (phase == 0),
        "arrives": fresh | (phase == delay),
        "staleness": jnp.where(fresh, 0, delay),
        "phase": phase,
        "mask": fresh,
        "earlier_starts": t // period * a_cycle + (phase > 0),
    }


@dataclass(frozen=True)
class ParticipationOptions(Group):
    """Who takes part in a round, see `Participation`."""

    participation: float = option(
        1.0, "part of the clients that takes part in a round", within="(0, 1]", noun="a fraction"
    )
    stragglers: Mapping[int, int] | None = option(
        None, "delay in rounds of each late client, such as {0: 1, 3: 2}"
    )
    straggler_schedule: str = option(
        "code", "cycle of a straggler: {choices}", choices=STRAGGLER_SCHEDULES
    )

    def validate(self) -> None:
        super().validate()
        given, allowed = type(self.stragglers).__name__, "a dict such as {3: 2}"
        named = self.stragglers is None or isinstance(self.stragglers, Mapping)
        require(named, "stragglers", given, allowed)
        if self.stragglers and self.participation < 1:
            raise InputError(
                f"Stragglers need a participation of 1, got {self.participation}: a late upload of "
                "a client that is not sampled when it arrives would be lost."
            )

    def cohorts(self, num_clients: int) -> Participation:
        """How the cohorts of so many clients are formed.

        Of a part of them that is no whole number the nearest is taken, at least one.

        Raises:
          InputError: a value that can't be, or no such client.
        """
        self.validate()
        delay = np.zeros((num_clients,), np.int32)
        for row, rounds in (self.stragglers or {}).items():
            row = convert("straggler", row, int)
            require(0 <= row < num_clients, "straggler", row, f"a client in 0..{num_clients - 1}")
            what = f"delay of straggler {row}"
            late = convert(what, rounds, int)
            require(1 <= late < 2**31 - 2, what, rounds, "at least 1 round, and whole")
            delay[row] = late
        # Rounds half up: Python's round() takes 2.5 to 2 but 3.5 to 4.
        size = max(1, int(np.floor(float(self.participation) * num_clients + 0.5)))
        return Participation(
            delay=jnp.asarray(delay),
            cohort_size=size,
            punctual=not self.stragglers,
            schedule=self.straggler_schedule,
        )
