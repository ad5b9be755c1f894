"""Client metadata for local steps."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.utils.errors import UNCOUNTED, UncountedRelease, require_whole
from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import Tree


class Calls:
    """Counts and numbers the noisy gradients of one local step while it is traced.

    Args:
      batches: the step's minibatches.
      key: the step's random key, of which their noise is drawn.
      loop: number of the local loop in its round.

    Attributes:
      total: gradients so far.
    """

    def __init__(self, batches: Sequence[Batch] = (), key: Any = None, loop: int = 0):
        self.total, self.key = 0, key
        self._of_batch, self._loop = [(batch, 0) for batch in batches], loop
        self._times, self._loops, self._trace = 1, (), trace_state()

    @property
    def per_batch(self) -> int:
        """The most gradients on one minibatch so far."""
        return max((count for _, count in self._of_batch), default=0)

    def next(self, batch: Batch) -> tuple[int | jax.Array, ...]:
        """Count a gradient on a minibatch; return numbers that no other one of the step has.

        Raises:
          UncountedRelease: it is in a loop or branch whose executions are not counted, or on other
            samples than a minibatch of the step.
        """
        self._check_trace()
        number, self.total = self.total, self.total + self._times
        known = [_is_same(batch, own) for own, _ in self._of_batch]
        if not any(known):
            raise UncountedRelease(
                f"A gradient with noise on other samples than a minibatch of its step {UNCOUNTED}: "
                "pass the step's own minibatch."
            )
        self._of_batch = [
            (own, count + self._times * same)
            for (own, count), same in zip(self._of_batch, known, strict=True)
        ]
        return self._loop, number, *self._loops

    def _check_trace(self) -> None:
        if trace_state() != self._trace:
            raise UncountedRelease(
                f"A gradient with noise in a loop or branch of a local step's own {UNCOUNTED}: "
                "compute it outside, or in a loop by client.repeat."
            )

    def repeat(self, count: int, body: Callable[[jax.Array, Any], Any], carry: Any) -> Any:
        """Return `lax.fori_loop(0, count, body, carry)`, whose gradients are counted."""
        require_whole("count", count, 0)
        self._check_trace()
        before = dict(vars(self))

        def counted(k: jax.Array, carry: Any) -> Any:
            vars(self).update(before)  # some loops are traced twice: the last time counts
            self._times, self._loops = self._times * count, (*self._loops, k)
            self._trace = trace_state()
            return body(k, carry)

        try:
            return jax.lax.fori_loop(0, count, counted, carry)
        finally:
            vars(self).update({name: before[name] for name in ("_times", "_loops", "_trace")})


def _is_same(one: Batch, other: Batch) -> bool:
    return all(getattr(one, name) is getattr(other, name) for name in ("inputs", "labels", "valid"))


@struct
class Client:
    """Client metadata available to local steps.

    Attributes:
      row: int32, row of the client axis.
      id: int32, permanent id.
      size: int32, number of samples of the split in use.
      class_counts: int32 [C], number of training samples of each class.
      num_steps: int32, number of local steps of the loop.
      step: int32, index of this step.
      operand: the client's row of `operands`.
      batch_size: int32, expected number of samples of its minibatches.
      calls: counts the noisy gradients that are computed in this step.
    """

    row: jax.Array
    id: jax.Array
    size: jax.Array
    class_counts: jax.Array
    num_steps: jax.Array
    step: jax.Array
    operand: Tree
    batch_size: jax.Array | None = None
    calls: Calls | None = static(default=None)

    def repeat(self, count: int, body: Callable[[jax.Array, Any], Any], carry: Any) -> Any:
        """Return `lax.fori_loop(0, count, body, carry)` within a local step.

        Sample-level privacy counts its gradients, each with noise of its own; those in other loops
        and branches of a step are refused.

        Args:
          count: number of repetitions; not traced.
          body: `body(k, carry) -> carry`.
          carry: what passes from one to the next.
        """
        if self.calls is None:
            return jax.lax.fori_loop(0, count, body, carry)
        return self.calls.repeat(count, body, carry)
