"""Data sets of scikit-learn and users' own arrays; importing this module registers all sources.

The order of the imports is the order of `run --list`.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.columns import column_names
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.labels import CLASSES
from fedjax_pfl.data.npz import npz_names, read_npz
from fedjax_pfl.data.sources import (  # noqa: F401 - importing them registers their data sets
    characters,
    images,
    leaf,
    parquet,
    pfllib_samples,
    published,
    recordings,
    table_source,
    text_source,
    tfds,
)
from fedjax_pfl.data.sources.idx import DIGITS
from fedjax_pfl.data.sources.source_registry import SAVEZ, register_dataset
from fedjax_pfl.data.sources.splits import TEST, TRAIN, VALIDATION, unused_note
from fedjax_pfl.utils.errors import InputError, require

_WORDS: dict[str, str] = dict.fromkeys(("images", "samples", "data", "features", "inputs"), "x")
_WORDS |= dict.fromkeys(("labels", "label", "targets", "target"), "y")


@register_dataset(
    "digits", "1,797 handwritten digits, 8x8, inside scikit-learn: no file needed", bundled=True
)
def load_digits(data_dir: Path | None) -> Dataset:
    """The digits of scikit-learn, [1797, 8, 8, 1] in 0..16."""
    from sklearn import datasets  # slow import: only where it is used

    pixels, labels = datasets.load_digits(return_X_y=True)  # [n, 64]
    return dataset_from_arrays(
        "digits",
        pixels.reshape(-1, 8, 8).astype(np.uint8),
        labels,
        num_classes=10,
        input_scaling="digits",
        class_names=DIGITS,
    )


@register_dataset(
    "diabetes",
    "442 patients and how their diabetes went on: a regression, inside scikit-learn",
    bundled=True,
)
def load_diabetes(data_dir: Path | None) -> Dataset:
    """The diabetes regression of scikit-learn; the number to predict is (progress - 152) / 77."""
    from sklearn import datasets  # slow import: only where it is used

    # Not scaled by scikit-learn, which takes means over all samples, test samples too.
    arrays: Any = datasets.load_diabetes(return_X_y=True, scaled=False)
    features, progress = arrays  # [442, 10], [442]
    return dataset_from_arrays(
        "diabetes",
        features,
        (progress - 152) / 77,
        input_scaling="standard",
        task="regression",
        note="the number to predict is (progress - 152) / 77",
    )


@register_dataset(
    "npz",
    "your own arrays, npz:PATH with x_train, y_train (and x_test, y_test)",
    needs="the path of a file",
)
def load_npz(
    path: Path, vocab_size: int | None = None, task: str = CLASSES, id_columns: str = ""
) -> Dataset:
    """An NPZ file of your own arrays.

    Without x_test and y_test, x_val and y_val are the test samples. Other orders and cases of these
    words are understood, such as X_train, train_x or trainX; the data set's note names arrays that
    are not used.

    Args:
      path: the file: x_train, y_train and perhaps x_test, y_test.
      vocab_size: number of token ids where samples are texts.
      task: see `dataset_from_arrays`.
      id_columns: columns for the rule `by_column`, such as "user" for user_train and user_test.
    """
    require(path.suffix != ".npy", "A file of one array", str(path), f"an NPZ file, by {SAVEZ}")
    names = npz_names(path)
    pairs = [_pair(path, names, TRAIN), _pair(path, names, TEST)]
    pairs = [pair or _pair(path, names, VALIDATION) if k else pair for k, pair in enumerate(pairs)]
    if pairs[0] is None:
        read_npz(path, ("x_train", "y_train"))  # its error names the missing arrays
    used = [name for pair in pairs if pair for name in pair]
    arrays = read_npz(path, used)
    ends = ["_train", "_test"][: len(used) // 2]
    known = [name.removesuffix("_train") for name in names
             if name.endswith("_train") and name not in used]  # fmt: skip
    columns = {}
    for name in column_names(id_columns, known, path):
        parts = read_npz(path, [f"{name}{end}" for end in ends])
        for (key, part), x in zip(parts.items(), used[::2], strict=False):
            fits, count = (part.size,) == arrays[x].shape[:1], f"as many as the samples of {x}"
            require(fits, f"Values of {key} in {path}", part.size, count)
        columns[name] = np.concatenate([part.reshape(-1) for part in parts.values()])
        used += parts
    return dataset_from_arrays(
        path.stem,
        *arrays.values(),
        vocab_size=vocab_size,
        columns=columns,
        task=task,
        note=unused_note([name for name in names if name not in used]),
    )


def _pair(path: Path, names: list[str], split: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the names of the samples and labels of a split; None if there are none.

    Raises:
      InputError: one without the other, or two of one meaning.
    """
    found = {}
    for letter in "xy":
        found[letter] = [name for name in names if _meaning(name) in {(letter, w) for w in split}]
        several = f"{path} has several arrays for {letter}_{split[0]}: {', '.join(found[letter])}."
        if len(found[letter]) > 1:
            raise InputError(several)
    if len(found["x"]) != len(found["y"]):
        both = f"{path} must have both of x_{split[0]} and y_{split[0]} or neither."
        raise InputError(both)
    return (found["x"][0], found["y"][0]) if found["x"] else None


def _meaning(name: str) -> tuple[str, str] | None:
    """Return ("x", "train") for "x_train", "X_train", "train_x", "trainX" and the like."""
    words = re.findall("[a-z]+", re.sub("(?<=[a-z])([A-Z])", r"_\1", name).casefold())
    if len(words) == 1:  # such as xtrain or trainx
        match = re.fullmatch("([xy])([a-z]{3,})|([a-z]{3,})([xy])", words[0])
        words = [word for word in match.groups() if word] if match else words
    first, *others = sorted((_WORDS.get(word, word) for word in words), key=len)
    return (first, others[0]) if len(others) == 1 else None
