"""Client metadata for local steps."""

from collections.abc import Iterator

import jax

from fedjax_pfl.utils.structs import static, struct
from fedjax_pfl.utils.typing import Tree


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
    calls: Iterator[int] | None = static(default=None)
