"""The interface of upload stages, which transform uploads on their way to the server."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.utils.typing import Key, Mask, PerMember, Scalar, Stack, Tree

MODEL = "model"  # the upload whose error feedback and clipping bound are kept between rounds


class StageMemory(NamedTuple):
    """What an upload stage keeps between rounds, for the upload "model".

    Attributes:
      errors: error feedback of the members, [M, ...], or None.
      bound: the clipping bound, or None.
      attack: what the attackers remember, or None.
    """

    errors: Stack | None = None
    bound: Scalar | None = None
    attack: Tree = None


class UploadInfo(NamedTuple):
    """The members, name and random key of one upload in a round.

    Attributes:
      ids: int32 [M], permanent ids.
      mask: bool [M], the members that send; what others send stays at the reference.
      weighted: bool [M], those of them with samples, who have a weight in every sum.
      what: name of the upload, unique within a round.
      key: random key of the upload.
      compressed: whether a compressor acts on it.
      expected: number of members of a round, known without looking at the clients.
    """

    ids: PerMember
    mask: Mask
    weighted: Mask
    what: str
    key: Key
    compressed: bool = True
    expected: float = 1.0


def empty_sum_row(weighted: Mask) -> Mask:
    """Return a mask [M] of the first row if no member has a weight, else of no row.

    A private sum has noise even where no client was drawn, since its absence would reveal that.
    This row's upload is then the reference with noise.
    """
    return (jnp.arange(len(weighted)) == 0) & ~jnp.any(weighted)


class UploadStage:
    """A pytree that maps what members send to what the server receives.

    Attributes:
      remembers: whether a `StageMemory` is kept between rounds.
      keeps_failed: whether a client whose training failed counts, with an update of zero.
      uniform: whether all members must have the same weight in sums.
      noise_of_sums: whether a sum has noise even if no member takes part, see `empty_sum_row`.
      number_bits: of uploads that are not compressed; None for those of their type.
    """

    remembers: bool = False
    keeps_failed: bool = False
    uniform: bool = False
    noise_of_sums: bool = False
    number_bits: int | None = None

    def __call__(
        self, sent: Tree, reference: Tree, info: UploadInfo, memory: StageMemory
    ) -> tuple[Tree, StageMemory]:
        """Return (what the server receives from the members [M, ...], the memory after it).

        Args:
          sent: what the members send, [M, ...].
          reference: what the server already holds in its place, [M, ...].
          info: the members and the name of this upload.
          memory: of the upload "model"; empty for others.
        """
        raise NotImplementedError

    def first_memory(self, shared: Stack) -> StageMemory:
        """Return the memory before the first round, for shared leaves [N, ...] of all clients."""
        return StageMemory()

    def attacking(self, ids: PerMember) -> Mask | None:
        """Return which clients are Byzantine, bool like `ids`, or None if none is."""
        return None

    def block_bytes(self, plan: LeafPlan, item_bytes: int) -> np.ndarray | None:
        """Return the bytes of an uploaded copy of each block, int64 [G]; None if all are sent."""
        return None
