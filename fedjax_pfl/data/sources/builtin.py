"""Data sets of scikit-learn and users' own arrays; importing this module registers all sources.

The order of the imports is the order of `run --list`.
"""

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
    pfllib,
    published,
    recordings,
    table,
    text,
    tfds,
)
from fedjax_pfl.data.sources.idx import DIGITS
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.utils.errors import InputError


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

    Args:
      path: the file: x_train, y_train and perhaps x_test, y_test.
      vocab_size: number of token ids where samples are texts.
      task: see `dataset_from_arrays`.
      id_columns: columns for the rule `by_column`, such as "user" for user_train and user_test.
    """
    arrays = read_npz(path, ("x_train", "y_train"), ("x_test", "y_test"))
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise InputError(f"{path} must have both of x_test and y_test or neither.")
    ends = [end for end in ("_train", "_test") if f"x{end}" in arrays]
    known = [name.removesuffix("_train") for name in npz_names(path)
             if name.endswith("_train") and name not in arrays]  # fmt: skip
    columns = {}
    for name in column_names(id_columns, known, path):
        parts = read_npz(path, [f"{name}{end}" for end in ends]).values()
        columns[name] = np.concatenate([part.reshape(-1) for part in parts])
    return dataset_from_arrays(
        path.stem,
        arrays["x_train"],
        arrays["y_train"],
        arrays.get("x_test"),
        arrays.get("y_test"),
        vocab_size=vocab_size,
        columns=columns,
        task=task,
    )
