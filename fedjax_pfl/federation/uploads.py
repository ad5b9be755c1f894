"""The upload stage, and one for tests: clients that send back what they received."""

from typing import Protocol

import jax
import jax.numpy as jnp

from fedjax_pfl.uploads.pipeline import Memory, Sending
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.typing import Tree


class UploadStage(Protocol):
    """A stage between what members send and what the server receives; a pytree.

    `fedjax_pfl.uploads.pipeline.Uploads` is the one that options make.
    """

    def __call__(
        self, sent: Tree, reference: Tree, sending: Sending, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Return (what the server receives from the members, leaves [M, ...], the memory).

        Args:
          sent: what the members send, [M, ...].
          reference: what the server already holds in its place, [M, ...].
          sending: the members and the name of this upload among the round's.
          memory: what the stage remembers of the members.
        """
        ...


@struct
class FreeRiders:
    """Free riders, which send back what they received.

    Attributes:
      ids: int32 [A], permanent ids of the free riders.
    """

    ids: jax.Array

    def __call__(self, sent: Tree, reference: Tree, sending: Sending, memory: Memory):
        return trees.where(jnp.isin(sending.ids, self.ids), reference, sent), memory
