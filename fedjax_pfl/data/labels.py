"""Label formats of each task."""

from typing import Any

import numpy as np

from fedjax_pfl.data.columns import Words, check_words
from fedjax_pfl.utils.conversions import as_array, finite_float32, kind_of, require_unmasked
from fedjax_pfl.utils.errors import refused, require, require_name

CLASSES = "classification"
NEXT = "next_token"
# The labels of each task, one row per sample.
TASKS = {
    CLASSES: "integers [n] in 0..C-1",
    "multi_label": "0 or 1, [n, K], for each of K labels",
    "regression": "finite numbers, [n] or [n, K]",
    NEXT: "integers [n, length], the token after each one, -1 where there is none",
}


def numbered_classes(
    dataset: str, train_y: Any, test_y: Any, names: tuple[str, ...]
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return (train_y, test_y, names) with numbers for labels that are text or truth values.

    Without names of the classes these are the labels, sorted, without blanks at the ends. Other
    labels stay as they are.

    Raises:
      InputError: a word for a missing value, two spellings of one label, or one without a name.
    """
    given = [np.atleast_1d(as_array(y)) for y in (train_y, test_y) if y is not None]
    if any(y.dtype.kind not in "bU" or y.size != len(y) for y in given):
        return train_y, test_y, names
    require_unmasked(f"labels of data set {dataset!r}", train_y)
    require_unmasked(f"test labels of data set {dataset!r}", test_y)
    words = [np.char.strip(y.reshape(-1).astype(str)) for y in given]
    found = Words(*np.unique(np.concatenate(words), return_inverse=True))
    check_words(f"Label of data set {dataset!r}", found)
    names = tuple(name.strip() for name in names) or tuple(found.values.tolist())
    require(len({*names}) == len(names), "class_names", names, "different names")
    for word in found.values:
        require_name("label", str(word), names)
    places = {name: k for k, name in enumerate(names)}
    numbers = [np.array([places[word] for word in y.tolist()], np.int32) for y in words]
    return numbers[0], numbers[1] if test_y is not None else None, names


def checked_labels(
    what: str, y: Any, count: int, task: str, texts: tuple[int, ...], vocab_size: int | None
) -> np.ndarray:
    """Convert labels to those of a `Dataset`: int32 [n] or [n, K], float32 [n, K] for a regression.

    Args:
      what: their name in messages.
      y: the labels.
      count: number of samples.
      task: a name in `TASKS`.
      texts: shape of one sample.
      vocab_size: number of token ids of texts, or None.

    Raises:
      InputError: a shape, type or value that doesn't fit the task.
    """
    require_unmasked(what, y)
    y = as_array(y)
    if task == "regression":
        return _numbers(what, y, count)
    if task == CLASSES and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    binary = y.size > 0 and y.dtype.kind in "biuf" and np.isin(y, (0, 1)).all()
    if task == CLASSES and y.ndim == 2 and binary:
        way = "(n,): np.argmax(labels, 1) of one-hot rows; several labels each, as integers, need "
        way += "task='multi_label'"
        raise refused(f"Shape of the {what}", y.shape, way)
    integers = "integer" + " or text" * (task == CLASSES)
    if task == CLASSES and y.dtype.kind == "f":
        integers += (
            " classes (numbers to predict need task='regression', or --data_option=task=regression)"
        )
    if y.dtype.kind not in ("biu" if task == "multi_label" else "iu"):
        raise refused(f"Type of the {what}", kind_of(y), integers)
    if task == CLASSES:
        require(y.shape == (count,), f"Shape of the {what}", y.shape, f"({count},), one per sample")
        _check_within(what, y, 0, 2**31, "integers 0..C-1")
    elif task == "multi_label":
        fits = y.ndim == 2 and y.shape[0] == count and y.shape[1] > 0
        require(fits, f"Shape of the {what}", y.shape, f"[{count}, K]")
        _check_within(what, y, 0, 2, "0 or 1")
    else:
        require(vocab_size is not None, "vocab_size", None, "given for the task next_token")
        expected = (count, *texts)
        require(y.shape == expected, f"Shape of the {what}", y.shape, f"{expected}, one per token")
        _check_within(what, y, -1, vocab_size or 0, f"-1 or token ids in 0..{vocab_size}-1")
    return y.astype(np.int32)


def _check_within(what: str, y: np.ndarray, least: int, end: int, allowed: str) -> None:
    low, high = (int(y.min()), int(y.max())) if y.size else (least, least)
    require(low >= least and high < end, f"Values of the {what}", f"{low}..{high}", allowed)


def _numbers(what: str, y: np.ndarray, count: int) -> np.ndarray:
    require(y.dtype.kind in "iuf", f"Type of the {what}", str(y.dtype), "numbers")
    y = y[:, None] if y.ndim == 1 else y
    fits = y.ndim == 2 and y.shape[0] == count and y.shape[1] > 0
    require(fits, f"Shape of the {what}", y.shape, f"[{count}] or [{count}, K]")
    return finite_float32(what, y)
