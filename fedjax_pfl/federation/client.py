"""The facts about its client that a local step may use."""

import jax

from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.typing import Tree


@struct
class Client:
    """The facts about its client that a local step may use.

    Attributes:
      row: int32, position on the client axis.
      id: int32, permanent id.
      size: int32, samples of the split in use.
      class_counts: int32 [C], training samples of each class.
      num_steps: int32, all local steps of its loop.
      step: int32, steps taken before this one.
      operand: the client's row of `operands`.
    """

    row: jax.Array
    id: jax.Array
    size: jax.Array
    class_counts: jax.Array
    num_steps: jax.Array
    step: jax.Array
    operand: Tree
