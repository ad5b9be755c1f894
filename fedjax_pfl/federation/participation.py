"""Client participation: sampling, stragglers, and the cohort of a round.

Cohorts are pure functions of (round, seed, permanent client id), so they are the same for all
algorithms, and no algorithm stores them in its state.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.utils import keys, trees
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Rows, Tree


@struct
class Cohort:
    """The M clients of one round; leaves lead with the cohort axis.

    Attributes:
      rows: int32 [M], rows of the client axis, ascending.
      ids: int32 [M], permanent ids, which are folded into random keys instead of rows.
      starts: bool [M], whether the client begins local training in this round.
      arrives: bool [M], whether an upload of the client reaches the server in this round.
      staleness: int32 [M], age of the arriving upload in rounds.
      phase: int32 [M], position in the client's straggler cycle (0 for punctual clients).
      delay: int32 [M], delay of a straggler's first upload in rounds (0 for punctual clients).
      mask: bool [M], members of a synchronous algorithm: clients that start and arrive in this
        round and whose training did not diverge.
      diverged: bool [M], members whose training became non-finite in this round.
      earlier_starts: int32 [M], number of earlier rounds in which the client began local training;
        only meaningful if all clients take part in every round.
      steps: int32 [M], minibatch gradients that the client has computed in this round so far,
        including those of diverged clients.
      num_clients: N, the number of all clients.
      in_place: whether the cohort consists of all clients in the order of the client axis.
      complete: whether the mask is statically all-true. `mark_diverged` and `masked` update it, so
        do not replace the mask.
      keeps_failed: whether members whose training diverged remain in the mask, with the model
        from which they began.
      parent: int32, the rows of the cohort of which this is a part (`member`), or None.
      observer: notified of rows that `scatter` refuses while a round is traced, by
        `observer.record_nonfinite(cohort, rows)`; otherwise None.
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
    keeps_failed: bool = static(default=False)
    parent: jax.Array | None = None
    observer: Any = static(default=None)

    @property
    def size(self) -> int:
        return self.rows.shape[0]

    @property
    def maybe_static_rows(self) -> Rows:
        """`rows`, as a NumPy array if the cohort is statically all clients in order.

        Functions of stacks then copy and move nothing.
        """
        return np.arange(self.num_clients, dtype=np.int32) if self.in_place else self.rows

    def gather(self, stack: Tree) -> Tree:
        """Take the cohort's rows: leaves [N, ...] become [M, ...]."""
        trees.check_rows("the gathered stack", stack, self.num_clients)
        return stack if self.in_place else trees.take(stack, self.rows)

    def scatter(self, stack: Tree, values: Tree, where: jax.Array | None = None) -> Tree:
        """Write `values` [M, ...] into the stack [N, ...] for the members of the mask.

        Absent and diverged clients keep their values, as do members whose new values are not
        finite, which the record reports as "nonfinite". `where` [M] replaces the mask, for
        algorithms with stale uploads.
        """
        trees.check_rows("the scattered values", values, self.size)
        where, finite = self.mask if where is None else where, trees.rows_finite(values, self.size)
        if self.observer is not None:
            self.observer.record_nonfinite(self, where & ~finite)
        where = where & finite
        written = trees.where(where, values, self.gather(stack))
        return written if self.in_place else trees.put(stack, self.rows, written)

    def member(self, k: jax.Array | int) -> "Cohort":
        """Return the cohort of the single member at position `k`, for sequential work."""
        parent = self.rows if self.parent is None else self.parent
        own = jax.tree.map(lambda leaf: leaf[k][None], replace(self, parent=None))
        return replace(own, in_place=False, parent=parent)

    def order(self, key: jax.Array) -> jax.Array:
        """Return a random order of the members' positions, int32 [M], by their permanent ids."""
        lots = jax.vmap(lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype="uint32"))
        return jnp.argsort(lots(self.ids)).astype(jnp.int32)

    def mark_diverged(self, finite: jax.Array, steps: jax.Array | int = 0) -> "Cohort":
        """Return the cohort with members that are not `finite` [M] marked as diverged.

        `steps` [M] are added to the members' numbers of computed gradients.
        """
        present = self.mask | self.starts | self.diverged  # Poisson cohorts have empty places
        diverged = self.diverged | (present & ~finite)
        mask = self.mask if self.keeps_failed else self.mask & finite
        return replace(self.counted(steps), mask=mask, diverged=diverged, complete=False)

    def counted(self, steps: jax.Array | int) -> "Cohort":
        """Return the cohort with `steps` [M] added to the numbers of computed gradients."""
        return replace(self, steps=(self.steps + steps).astype(jnp.int32))

    def masked(self, members: jax.Array) -> "Cohort":
        """Return the cohort of `members` [M] only, which may be late, without diverged ones.

        Members that are left out do not count as diverged.
        """
        failed = self.diverged & (not self.keeps_failed)
        return replace(self, mask=members & ~failed, complete=False)

    def on_schedule(self, t: jax.Array, schedule: str) -> "Cohort":
        """Return the cohort of round `t` under another straggler schedule (`Participation`)."""
        times = _times(t, self.delay, schedule)
        drawn = self.starts | self.arrives | self.mask | (self.delay > 0)
        times |= {name: times[name] & drawn for name in ("starts", "arrives", "mask")}
        return replace(self, **times) if self.in_place else self  # sampling excludes stragglers

    def dropping_late(self) -> "Cohort":
        """Return the cohort under a server that drops late uploads.

        A straggler then trains in the round in which its upload arrives, instead of earlier.
        """
        pending = (self.phase > 0) & (self.phase <= self.delay)  # its start now comes later
        earlier = self.earlier_starts - pending
        return replace(self, starts=self.arrives, arrives=self.mask, earlier_starts=earlier)

    def flushed(self, now: jax.Array) -> "Cohort":
        """Return the cohort in which pending uploads arrive in this round if `now`."""
        waiting = (self.phase > 0) & (self.phase < self.delay) & now
        staleness = jnp.where(waiting, self.phase, self.staleness)
        return replace(self, arrives=self.arrives | waiting, staleness=staleness)

    def spread(self, values: jax.Array, fill: float) -> jax.Array:
        """Expand per-member values [M, ...] to [N, ...], with `fill` for absent clients."""
        if self.in_place:
            return values
        full = jnp.full((self.num_clients, *values.shape[1:]), fill, values.dtype)
        return full.at[self.rows].set(values)

    def expand(self, weights: jax.Array) -> jax.Array:
        """Expand a mixing matrix [..., M, M] or [..., M, N] to [..., N, N].

        Clients that keep their model (absent, diverged, or with a row of zeros) have rows of the
        identity.
        """
        own = ~self.mask | ~jnp.any(weights != 0, axis=-1)
        identity = jnp.eye(self.num_clients, dtype=weights.dtype)
        all_senders = weights.shape[-1] == self.num_clients
        unchanged = identity[self.rows] if all_senders else jnp.eye(self.size, dtype=weights.dtype)
        weights = jnp.where(own[..., None], unchanged, weights)
        if self.in_place:
            return weights
        full = jnp.broadcast_to(identity, (*weights.shape[:-2], *identity.shape))
        if all_senders:
            return full.at[..., self.rows, :].set(weights)
        return full.at[..., self.rows[:, None], self.rows[None, :]].set(weights)

    def gather_pairs(self, pairs: Tree) -> Tree:
        """Take the cohort's rows and columns: leaves [N, N, ...] become [M, M, ...]."""
        if self.in_place:
            return pairs
        return jax.tree.map(lambda leaf: leaf[self.rows[:, None], self.rows[None, :]], pairs)

    def scatter_pairs(self, pairs: Tree, values: Tree) -> Tree:
        """Write `values` [M, M, ...] into the pairs [N, N, ...] of members of the mask."""
        both = self.mask[:, None] & self.mask[None, :]
        written = trees.where(both, values, self.gather_pairs(pairs))
        if self.in_place:
            return written
        return trees.put(pairs, (self.rows[:, None], self.rows[None, :]), written)


@struct
class Participation:
    """Sampling of cohorts, and stragglers.

    Attributes:
      delay: int32 [N], delay of a straggler's first upload in rounds; 0 for punctual clients.
      cohort_size: M, clients sampled in each round, uniformly and without replacement; under
        Poisson sampling the most that a round can have.
      poisson: probability with which each client takes part, independently of all others; None for
        cohorts of a fixed size.
      punctual: whether there are no stragglers.
      window: int32 [N, 2], the first round from 0 of each client and the first without it; None if
        all are there in all rounds.
      schedule: cycle of a straggler with delay d. "code" (period d + 2, the published PLGA code):
        the client starts in phase 0, its upload arrives in phase d, and in phase d + 1 it starts
        and arrives like a punctual client. "paper" (period d + 1): it starts in phase 0 and arrives
        in phase d.
    """

    delay: jax.Array
    cohort_size: int = static()
    punctual: bool = static(default=True)
    schedule: str = static(default="code")
    poisson: float | None = static(default=None)
    window: jax.Array | None = None

    @property
    def expected(self) -> float:
        """Expected number of clients in a round, known beforehand: M; pN under Poisson sampling."""
        return self.cohort_size if self.poisson is None else self.poisson * len(self.delay)

    def sampled(self, num_clients: int) -> bool:
        """Return whether sampling, arrivals or departures leave clients out of some rounds."""
        some = self.cohort_size < num_clients or self.poisson is not None
        return some or self.window is not None

    def present(self, t: jax.Array | int) -> jax.Array | None:
        """Return which clients are there in round `t`, bool [N]; None for all."""
        if self.window is None:
            return None
        window = jnp.asarray(self.window)
        return (window[:, 0] <= t) & (t < window[:, 1])

    def cohort(self, key: jax.Array, t: jax.Array, ids: jax.Array) -> Cohort:
        """Return the cohort of round `t` (from 0), given the run's key and `ids` int32 [N]."""
        num_clients, size = ids.shape[0], self.cohort_size
        rows = jnp.arange(num_clients, dtype=jnp.int32)
        lots = jnp.zeros((num_clients,), jnp.float32)
        if self.sampled(num_clients):
            lots = keys.lots(jax.random.fold_in(key, t), ids)
        here = self.present(t)
        if here is not None:  # clients that are not there are drawn last
            lots = jnp.where(here, lots, jnp.inf)
        if size < num_clients:
            rows = jnp.sort(jax.lax.top_k(-lots, size)[1]).astype(jnp.int32)
        delay = jnp.asarray(self.delay)[rows]
        times = _punctual(t, size) if self.punctual else _times(t, delay, self.schedule)
        if size < num_clients:
            times["earlier_starts"] = jnp.zeros_like(delay)
        if self.poisson is not None:
            drawn = lots[rows] < self.poisson
            times |= {name: times[name] & drawn for name in ("starts", "arrives", "mask")}
        if here is not None:
            times |= {name: times[name] & here[rows] for name in ("starts", "arrives", "mask")}
        return Cohort(
            rows=rows,
            ids=ids[rows],
            delay=jnp.asarray(delay),
            diverged=jnp.zeros((size,), bool),
            steps=jnp.zeros((size,), jnp.int32),
            num_clients=num_clients,
            in_place=size == num_clients,
            complete=not self.sampled(num_clients) and self.punctual,
            keeps_failed=False,
            **times,
        )


def _punctual(t: jax.Array, size: int) -> dict[str, jax.Array]:
    """Return `_times` of clients without delay."""
    always, none = jnp.ones((size,), bool), jnp.zeros((size,), jnp.int32)
    times = {"starts": always, "arrives": always, "mask": always, "staleness": none, "phase": none}
    return times | {"earlier_starts": jnp.broadcast_to(jnp.asarray(t, jnp.int32), (size,))}


def _times(t: jax.Array, delay: jax.Array, schedule: str) -> dict[str, jax.Array]:
    """Return fields of a cohort in round `t`, [M] each, for clients with `delay` [M]."""
    late = delay > 0
    period = jnp.where(late, delay + (2 if schedule == "code" else 1), 1)
    phase = t % period
    # A straggler starts in phase 0; with "code" also in the last phase of its cycle.
    starts_per_cycle = jnp.where(late & (schedule == "code"), 2, 1)
    fresh = ~late | (phase == delay + 1)
    return {
        "starts": fresh | (phase == 0),
        "arrives": fresh | (phase == delay),
        "staleness": jnp.where(fresh, 0, delay),
        "phase": phase,
        "mask": fresh,
        "earlier_starts": t // period * starts_per_cycle + (phase > 0),
    }
