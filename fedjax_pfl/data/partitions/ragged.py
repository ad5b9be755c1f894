"""Index lists of different lengths in one array."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from fedjax_pfl.utils.conversions import as_array
from fedjax_pfl.utils.errors import require

Lists: TypeAlias = Sequence[Any] | np.ndarray | jax.Array  # N sequences of whole numbers


class Ragged(NamedTuple):
    """N index lists in one array; list i is `idx[offsets[i]:offsets[i + 1]]`.

    Attributes:
      idx: the concatenated lists [total], int32.
      offsets: beginnings of the lists, and the end of the last one [N + 1], int64.
    """

    idx: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, lists: Lists) -> "Ragged":
        """Pack N one-dimensional sequences of integers in 0..2**31 - 1.

        Raises:
          InputError: anything else, including booleans and 1.0.
        """
        listed = hasattr(lists, "__len__") and getattr(lists, "shape", None) != ()
        require(listed, "Sample indices", type(lists).__name__, "a list for each client")
        arrays = [_indices(k, one) for k, one in enumerate(lists)]
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return cls(np.concatenate([np.zeros(0, np.int32), *arrays]), offsets)

    def lists(self) -> list[np.ndarray]:
        """Return the N lists."""
        return np.split(self.idx, self.offsets[1:-1])

    def owners(self) -> np.ndarray:
        """Return the list of each entry of `idx` [total]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def _indices(client: int, indices: Sequence) -> np.ndarray:
    """One client's list as int32."""
    array = as_array(indices)
    if array.shape == (0,):
        return np.zeros(0, np.int32)
    integers = array.dtype.kind in "iu" and array.ndim == 1
    if integers and not isinstance(indices, np.ndarray):  # among integers True becomes 1
        integers = not any(isinstance(one, bool | np.bool_) for one in indices)
    what = f"Sample indices of client {client}"
    require(integers, what, f"{array.dtype} {array.shape}", "a flat list of whole numbers")
    low, high = int(array.min()), int(array.max())
    require(low >= 0 and high < 2**31, what, f"{low}..{high}", "in 0..2**31 - 1")
    return array.astype(np.int32)
