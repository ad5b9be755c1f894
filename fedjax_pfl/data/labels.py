"""Label formats of each task."""

from typing import Any

import numpy as np

from fedjax_pfl.utils.conversions import as_array, finite_float32, require_unmasked
from fedjax_pfl.utils.errors import require

CLASSES = "classification"
NEXT = "next_token"
# The labels of each task, one row per sample.
TASKS = {
    CLASSES: "integers [n] in 0..C-1",
    "multi_label": "0 or 1, [n, K], for each of K labels",
    "regression": "finite numbers, [n] or [n, K]",
    NEXT: "integers [n, length], the token after each one, -1 where there is none",
}


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
    integers = "integer"
    if task == CLASSES and y.dtype.kind == "f":
        integers += (
            " classes (numbers to predict need task='regression', or --data_option=task=regression)"
        )
    require(y.dtype.kind in ("biu" if task == "multi_label" else "iu"), f"Type of the {what}",
            str(y.dtype), integers)  # fmt: skip
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
