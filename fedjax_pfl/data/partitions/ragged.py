"""Index lists of any lengths in one array."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fedjax_pfl.utils.errors import require

Lists: TypeAlias = Sequence[Any] | np.ndarray  # N sequences of whole numbers


class Ragged(NamedTuple):
    """N index lists of any lengths in one array; list i is `idx[offsets[i]:offsets[i + 1]]`.

    Attributes:
      idx: all lists one after the other [total], int32.
      offsets: where each list starts, and the end of the last one [N + 1], int64.
    """

    idx: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, lists: Lists) -> "Ragged":
        """Packs N one-dimensional sequences of whole numbers in 0..2**31 - 1.

        Raises:
          InputError: anything else, booleans and 1.0 included.
        """
        listed = hasattr(lists, "__len__") and getattr(lists, "shape", None) != ()
        require(listed, "Sample indices", type(lists).__name__, "a list for each client")
        arrays = [_indices(k, one) for k, one in enumerate(lists)]
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return cls(np.concatenate([np.zeros(0, np.int32), *arrays]), offsets)

    def lists(self) -> list[np.ndarray]:
        """The N lists."""
        return np.split(self.idx, self.offsets[1:-1])

    def owners(self) -> np.ndarray:
        """Which list each entry of `idx` belongs to [total]."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def _indices(client: int, given: Sequence) -> np.ndarray:
    """One client's list as int32."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, OverflowError):  # nested lists of several lengths
        array = np.asarray(None)
    if array.shape == (0,):
        return np.zeros(0, np.int32)
    whole = array.dtype.kind in "iu" and array.ndim == 1
    if whole and not isinstance(given, np.ndarray):  # among whole numbers True becomes 1
        whole = not any(isinstance(one, bool | np.bool_) for one in given)
    what = f"Sample indices of client {client}"
    found = f"{array.dtype} {array.shape}"
    require(whole, what, found, "a flat list of whole numbers")
    low, high = int(array.min()), int(array.max())
    require(low >= 0 and high < 2**31, what, f"{low}..{high}", "in 0..2**31 - 1")
    return array.astype(np.int32)
