"""Finds samples in a data set's pool by their content, for splits that saved copies of them."""

import hashlib
from collections import defaultdict, deque

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.utils.errors import InputError, require


class Matcher:
    """Looks samples up by content and label; each sample of the pool is found only once.

    Attributes:
      ambiguous: how many found samples had several equal candidates.
    """

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.ambiguous: int = 0
        self._places: dict[bytes, deque[int]] | None = None

    def match(self, x: np.ndarray, y: np.ndarray | None, what: str) -> np.ndarray:
        """Pool indices of samples [n, ...] of the pool's type and shape, ascending.

        Args:
          x: samples.
          y: their labels [n], or None if they aren't known.
          what: their name in sentences.

        Raises:
          InputError: a sample that the pool doesn't have, or not that often.
        """
        if y is not None:
            fits = y.shape == (len(x),) and y.dtype.kind in "iu"
            require(fits, f"Labels of the {what}", f"{y.dtype} {y.shape}", f"{len(x)} integers")
        if self._places is None:
            self._places = self._index()
        found, missing, labels = [], [], self.dataset.labels
        for k, key in enumerate(map(_digest, x)):
            places = self._places.get(key, deque())
            open_places = [i for i in places if y is None or labels[i] == y[k]]
            if open_places:
                self.ambiguous += len(open_places) > 1
                found.append(open_places[0])
                places.remove(open_places[0])
            else:
                missing.append(k)
        if missing:
            raise InputError(
                f"{len(missing)} of {len(x)} {what} (the first is number {missing[0]}) are not in "
                f"data set {self.dataset.name!r}, not with this label, or more often than there: "
                "is it the data set that was split, with its official test samples?"
            )
        return np.sort(np.array(found, np.int64))

    def _index(self) -> dict[bytes, deque[int]]:
        places = defaultdict(deque)
        for i, sample in enumerate(self.dataset.pool()[0]):
            places[_digest(sample)].append(i)
        return places


def _digest(sample: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(sample).tobytes(), digest_size=16).digest()


def pixels(x: np.ndarray, dataset: Dataset, what: str, mean: float, std: float) -> np.ndarray:
    """Samples as the pool holds them, of arrays that may be normalised and lead with channels.

    Args:
      x: [n, ...], uint8 pixels, or floats 255 * (x * std + mean) of which are pixels. For a pool of
        floats: those floats.
      dataset: the pool.
      what: the samples' name in sentences.
      mean, std: of the normalisation.

    Raises:
      InputError: another shape, or values that don't give pixels.
    """
    shape = dataset.input_shape
    require(x.dtype.kind in "uif", f"Type of the {what}", str(x.dtype), "numbers")
    if len(shape) == 3 and x.shape[1:] != shape:
        if x.shape[1:] == shape[:2]:
            x = x[..., None]
        elif x.shape[1:] == (shape[2], *shape[:2]):
            x = np.moveaxis(x, 1, -1)
    require(x.shape[1:] == shape, f"Shape of the {what}", x.shape[1:], f"{shape}")
    if dataset.train_x.dtype != np.uint8:
        return x.astype(np.float32)
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore", invalid="ignore"):  # what comes out as no number doesn't fit
        values = 255 * (x.astype(np.float64) * std + mean)
        whole = np.rint(values)
        near = np.abs(values - whole) < 0.01
    fits = bool(np.all(near) and np.all((whole >= 0) & (whole <= 255)))
    if not fits:
        raise InputError(
            f"The {what} aren't pixels: 255 * (x * {std} + {mean}) must be whole numbers 0..255. "
            "Give the mean and std of the script that normalised them."
        )
    return whole.astype(np.uint8)
