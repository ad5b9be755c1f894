"""Minibatch schedules of local training.

A schedule is hashable and static. It divides a client's samples into batches and determines the
number of steps, their samples, and whether epochs are shuffled. `batch_indices` returns the same
batches as arrays, so that other implementations can use exactly them.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.data.federated import Split
from fedjax_pfl.utils.errors import InputError, require, require_whole
from fedjax_pfl.utils.keys import fold_all
from fedjax_pfl.utils.typing import Key, Scalar

Count = TypeVar("Count", int, jax.Array, np.ndarray)  # one number, or one for each client
BATCH_ORDERS = ("shuffled", "fresh", "poisson", "partition", "by_class")
IN_ORDER = ("partition", "by_class")
COUNT_LIMIT = 2**31  # programs count in int32, so counts must be below
# Most steps of one loop over a client's samples, so that the sum over a round's loops fits too.
MAX_STEPS = COUNT_LIMIT // 64
DEVIATIONS = 6  # of a Poisson minibatch's size, for which its arrays have room


@dataclass(frozen=True)
class Schedule:
    """Batches of a client's samples for a number of epochs, or for a number of steps.

    Attributes:
      epochs: passes over the client's samples; ignored if `steps` is given.
      steps: local steps, the same for every client, over as many epochs as necessary.
      batch_size: B samples in each minibatch; the last one of an epoch may hold fewer.
      batches_per_step: minibatches of a step (2 or 3 for meta-learning), each of B samples. The
        samples of an incomplete step are divided evenly, the first minibatches getting more.
      drop_last: omit the incomplete step at the end of an epoch. A client with fewer samples than
        one step needs then takes no step.
      shuffle: use a new permutation in each epoch; otherwise the order of the split, in which a
        round continues where the client's previous round stopped.
      fresh: use the first samples of a new permutation in each step; epochs only determine the
        number of steps.
      poisson: each sample is in the minibatch of a step with probability q = B / n (1 where n < B),
        independently of all others; the number of steps is that of minibatches of B samples.
    """

    epochs: int = 1
    steps: int | None = None
    batch_size: int = 10
    batches_per_step: int = 1
    drop_last: bool = False
    shuffle: bool = True
    fresh: bool = False
    poisson: bool = False

    def validate(self) -> None:
        require_whole("local_epochs", self.epochs, 0)
        require_whole("batch_size", self.batch_size, 1)
        require_whole("local steps", 0 if self.steps is None else self.steps, 0)
        require_whole("batches_per_step", self.batches_per_step, 1)
        allowed = "1, 2 or 3"
        require(self.batches_per_step <= 3, "batches_per_step", self.batches_per_step, allowed)
        for name in ("drop_last", "shuffle", "fresh", "poisson"):
            value = getattr(self, name)
            require(isinstance(value, bool), name, value, "True or False")
        require(self.shuffle or not self.fresh, "fresh", self.fresh, "False without shuffle")
        require(self.shuffle or not self.poisson, "poisson", self.poisson, "False without shuffle")
        allowed = "1 with batch_order 'poisson', which draws one minibatch in a step"
        one = not self.poisson or self.batches_per_step == 1
        require(one, "batches_per_step", self.batches_per_step, allowed)

    def check_counts(self, capacity: int, rounds: int = 1) -> None:
        """Raise `InputError` if steps are too many to be counted.

        Args:
          capacity: number of samples of the largest client.
          rounds: number of rounds; unshuffled schedules count the steps of all rounds.
        """
        steps = int(self.fitting(capacity).total_steps(int(capacity)))
        if steps > MAX_STEPS:
            raise InputError(
                f"A client with {capacity:,} samples would take {steps:,} local steps in a round, "
                f"but at most {MAX_STEPS:,} are allowed: take fewer epochs or steps."
            )
        if not self.shuffle and steps * rounds >= COUNT_LIMIT:
            raise InputError(
                f"A client with {capacity:,} samples would take {steps * rounds:,} local steps in "
                f"{rounds:,} rounds, but unshuffled batches can be counted below {COUNT_LIMIT:,}."
            )

    def fitting(self, capacity: int) -> "Schedule":
        """Return the same schedule with batches no larger than the largest client's samples."""
        # With drop_last the largest client must still drop a step of which one sample is missing.
        most = -(-(capacity + self.drop_last) // self.batches_per_step)
        return self if self.batch_size <= most else replace(self, batch_size=most)

    def one_pass(self) -> "Schedule":
        """Return the schedule of one pass over all samples in their order."""
        return replace(
            self, epochs=1, steps=None, shuffle=False, fresh=False, poisson=False, drop_last=False
        )

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.batches_per_step

    def expected_batch(self, size: Count) -> Count:
        """Return the expected number of samples of a minibatch (int or traced)."""
        most = ceil_div(size, self.batches_per_step)
        return most - (most - self.batch_size) * (most > self.batch_size)

    def slots(self, capacity: int) -> int:
        """Return the length of a minibatch's arrays, for clients with at most `capacity` samples.

        It exceeds the expected size of a Poisson minibatch by 6 standard deviations. A larger
        minibatch is cut, which privacy accounting takes into account.
        """
        if not self.poisson:
            return self.batch_size
        mean = min(self.batch_size, capacity)
        spread = math.sqrt(mean * (1 - mean / capacity))
        return min(capacity, math.ceil(mean + DEVIATIONS * spread))

    def steps_per_epoch(self, size: Count) -> Count:
        """Return the steps of one epoch over `size` samples (int or traced)."""
        if self.drop_last:
            return floor_div(size, self.samples_per_step)
        return ceil_div(size, self.samples_per_step)

    def steps_per_order(self, size: Count) -> Count | int:
        """Return the steps that use one permutation (int or traced)."""
        return 1 if self.fresh or self.poisson else self.steps_per_epoch(size)

    def total_steps(self, size: Count) -> Count:
        """Return the local steps of a client with `size` samples (int or traced)."""
        per_epoch = self.steps_per_epoch(size)
        if self.steps is None:
            return self.epochs * per_epoch
        return self.steps * (per_epoch > 0)

    def order(self, key: Key, size: Scalar | int, capacity: int) -> jax.Array:
        """Return the order by an `order_key`, int32 [capacity]: positions below `size` first."""
        if not self.shuffle:
            return jnp.arange(capacity, dtype=jnp.int32)
        # A client's order depends on nothing but its own key: element i of `bits` is the same
        # whatever the capacity, and the sort is stable, so a sample wins a tie with the padding.
        lots = _lots(key, capacity)
        padded = jnp.where(jnp.arange(capacity) < size, lots, jnp.uint32(0xFFFFFFFF))
        return jnp.argsort(padded, stable=True).astype(jnp.int32)

    def drawn(self, key: Key, size: Scalar | int, capacity: int) -> jax.Array:
        """Return how many samples are in the Poisson minibatch of a step; they lead its `order`."""
        share = self.batch_size / jnp.maximum(jnp.asarray(size), 1).astype(jnp.float32)
        # Rounded down by more than the rounding error: the true rate is never above q.
        most = jnp.minimum(share, 1 - 2.0**-20) * (2.0**32 * (1 - 2.0**-21))
        some = _lots(key, capacity) < most.astype(jnp.uint32)
        some |= size <= self.batch_size
        return jnp.sum(some & (jnp.arange(capacity) < size), dtype=jnp.int32)

    def positions(
        self, order: jax.Array, step: Scalar | int, size: Scalar | int
    ) -> tuple[jax.Array, jax.Array]:
        """Return (elements of `order`, valid), both [batches_per_step, slots], of one step.

        `size` is the number of samples in `order`, of a Poisson minibatch those drawn.
        """
        slots = self.slots(order.shape[0])
        first = step * slots * self.batches_per_step
        left = jnp.clip(size - first, 0, slots * self.batches_per_step)
        each = floor_div(left, self.batches_per_step)
        more = left - each * self.batches_per_step  # minibatches with another sample
        number = jnp.arange(self.batches_per_step, dtype=jnp.int32)[:, None]
        within = jnp.arange(slots, dtype=jnp.int32)
        at = number * each + jnp.minimum(number, more) + within
        valid = within < each + (number < more)
        return order[jnp.minimum(first + at, order.shape[0] - 1)], valid


def floor_div(a: Count, b: Count | int) -> Count:
    """Return a // b of whole numbers that are not negative.

    Compiled programs have one instruction for it, and a dozen for `//`, which knows signs.
    """
    if not isinstance(a, jax.Array):
        return a // b
    return jax.lax.div(*jnp.broadcast_arrays(a, jnp.asarray(b, a.dtype)))


def ceil_div(a: Count, b: Count | int) -> Count:
    """Return a / b of whole numbers, rounded up; a + b must not exceed their type."""
    return floor_div(a + (b - 1), b)


def _lots(key: Key, capacity: int) -> jax.Array:
    """Return the random numbers by which a client's samples are ordered, uint32 [capacity]."""
    return jax.random.bits(key, (capacity,), jnp.uint32)


def order_key(key: Key, client_id: Scalar | int, epoch: Scalar | int) -> Key:
    """Return the key of the order of a client's samples in an epoch of the round with this key.

    With `fresh` and `poisson`, `epoch` is the step.
    """
    return fold_all(key, client_id, 0, epoch)


def step_key(key: Key, client_id: Scalar | int, step: Scalar | int) -> Key:
    """Return the key of a client's local step in the round with this key."""
    return fold_all(key, client_id, 1, step)


def batch_indices(
    schedule: Schedule, split: Split, key: Key, client_id: int, row: int, cursor: int = 0
) -> list[list[np.ndarray]]:
    """Return the batches of one client in one round, on the host.

    Args:
      schedule: the local schedule.
      split: the samples, such as `federation.data.train`.
      key: the round's key of the purpose, `keys.of_round(run_key, "train", t)`.
      client_id: permanent id of the client.
      row: the client's row of the client axis.
      cursor: steps taken before; unshuffled schedules continue there.

    Returns:
      For every step a list of `batches_per_step` arrays of indices into the pool of samples,
      without padding.
    """
    size, capacity = int(split.size[row]), split.capacity
    own, steps = np.asarray(split.index)[int(split.offset[row]) :], []
    for k in range(cursor, cursor + int(schedule.total_steps(size))):
        number = np.int32(client_id)
        found = jax.device_get(
            _positions(schedule, key, number, np.int32(k), np.int32(size), capacity)
        )
        steps.append([own[at[valid]] for at, valid in zip(*found, strict=True)])
    return steps


@partial(jax.jit, static_argnames=("schedule", "capacity"))
def _positions(
    schedule: Schedule, key: Key, client_id: Scalar, step: Scalar, size: Scalar, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Return one step's (positions in the client's list, valid), both [batches_per_step, B]."""
    per_order = schedule.steps_per_order(size)
    own = order_key(key, client_id, step // per_order)
    order = schedule.order(own, size, capacity)
    count = schedule.drawn(own, size, capacity) if schedule.poisson else size
    return schedule.positions(order, step % per_order, count)
