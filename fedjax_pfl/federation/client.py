"""Client metadata for local steps."""

import itertools

import jax

from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import Tree


class Calls:
    """Numbers the gradients of one local step while it is traced."""

    def __init__(self):
        self._numbers, self._trace = itertools.count(), trace_state()

    def next(self) -> tuple[int, bool]:
        """Return (the number of the next one from 0, whether it is in a loop or branch)."""
        return next(self._numbers), trace_state() != self._trace


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
      calls: numbers the gradients that are computed in this step, for their noise.
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
