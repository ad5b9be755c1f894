"""Lookup of saved samples in a data set's pool, and comparison with saved splits."""

import hashlib
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.utils.errors import InputError, require


class Matcher:
    """Looks up samples by content and label; each sample of the pool is matched only once.

    Attributes:
      ambiguous: number of matched samples with several equal candidates.
    """

    def __init__(self, dataset: Dataset):
        self.dataset = dataset
        self.ambiguous: int = 0

    def match(self, x: np.ndarray, y: np.ndarray | None, what: str) -> np.ndarray:
        """Return the pool indices of samples, ascending.

        Args:
          x: samples [n, ...] of the pool's type and shape.
          y: their labels [n], or None if unknown.
          what: their name in messages.

        Raises:
          InputError: the pool doesn't have a sample, or not that often.
        """
        if y is not None:
            fits = y.shape == (len(x),) and y.dtype.kind in "iu"
            require(fits, f"Labels of the {what}", f"{y.dtype} {y.shape}", f"{len(x)} integers")
        matches, missing, labels = [], [], self.dataset.labels
        for k, key in enumerate(map(_digest, x)):
            places = self._places.get(key, deque())
            open_places = [i for i in places if y is None or labels[i] == y[k]]
            if open_places:
                self.ambiguous += len(open_places) > 1
                matches.append(open_places[0])
                places.remove(open_places[0])
            else:
                missing.append(k)
        if missing:
            raise InputError(
                f"{len(missing)} of {len(x)} {what} (the first is number {missing[0]}) are not in "
                f"data set {self.dataset.name!r}, not with this label, or more often than there: "
                "is it the data set that was split, with its official test samples?"
            )
        return np.sort(np.array(matches, np.int64))

    @cached_property
    def _places(self) -> dict[bytes, deque[int]]:
        places = defaultdict(deque)
        for i, sample in enumerate(self.dataset.pool()[0]):
            places[_digest(sample)].append(i)
        return places


def index_list(what: str, values: Any, count: int) -> np.ndarray:
    """Return a list of a JSON file as sorted indices, int64.

    Raises:
      InputError: it isn't a list of integers in 0..count - 1.
    """
    fits = isinstance(values, list) and all(type(i) is int and 0 <= i < count for i in values)
    if not fits:
        raise InputError(
            f"{what} must be a list of integers 0..{count - 1}: is it of the data set that was "
            "split?"
        )
    return np.sort(np.array(values, np.int64))


def check_class_counts(
    noted: Sequence[Any], splits: Sequence[Sequence[np.ndarray]], dataset: Dataset, path: Path
) -> None:
    """Compare with the class counts recorded by another tool.

    Args:
      noted: for each client a dict of its samples by class, all splits together; others are not
        compared.
      splits: pool indices by split and client.
      dataset: the data set that was split.
      path: file of the counts.

    Raises:
      InputError: the counts differ.
    """
    for client, (row, *parts) in enumerate(zip(noted, *splits, strict=True)):
        if not isinstance(row, dict):
            continue
        classes, counts = np.unique(dataset.labels[np.concatenate(parts)], return_counts=True)
        held = dict(zip(map(str, classes), counts.tolist(), strict=True))
        if held != {str(c): count for c, count in row.items() if count}:
            raise InputError(
                f"Client {client} has other class counts than in {path}: data set {dataset.name!r} "
                "isn't the one that was split, or has another order."
            )


def _digest(sample: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(sample).tobytes(), digest_size=16).digest()


def pixels(x: np.ndarray, dataset: Dataset, what: str, mean: float, std: float) -> np.ndarray:
    """Convert samples, perhaps normalized or with channels first, to the pool's form.

    Args:
      x: [n, ...], uint8 pixels or normalized floats; for a pool of floats, floats of the pool.
      dataset: the data set of the pool.
      what: the samples' name in messages.
      mean: pixels are 255 * (x * std + mean).
      std: see `mean`.

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
    with np.errstate(over="ignore", invalid="ignore"):  # NaN doesn't fit
        values = 255 * (x.astype(np.float64) * std + mean)
        rounded = np.rint(values)
        near = np.abs(values - rounded) < 0.01
    fits = bool(np.all(near) and np.all((rounded >= 0) & (rounded <= 255)))
    if not fits:
        raise InputError(
            f"The {what} aren't pixels: 255 * (x * {std} + {mean}) must be whole numbers 0..255. "
            "Give the mean and std of the script that normalized them."
        )
    return rounded.astype(np.uint8)
