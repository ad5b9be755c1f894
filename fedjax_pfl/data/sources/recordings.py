"""Recordings of sensors: signals of several channels, cut into windows."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.data.columns import checked_columns
from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.labels import CLASSES, checked_labels
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.npz import npz_names, read_npz
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.utils.conversions import number
from fedjax_pfl.utils.errors import InputError, require, require_whole

TASKS = (CLASSES, "regression", "multi_label")
ARRAYS = ("recordings", "lengths", "labels")


@register_dataset(
    "recordings",
    "windows of your own sensors' recordings, recordings:PATH of an NPZ file",
    natural=True,
    needs="a file",
)
def load_recordings(
    data_dir: Path,
    window: int = 100,
    step: int | None = None,
    test_fraction: float = 0.25,
    task: str = CLASSES,
) -> Dataset:
    """An NPZ file of concatenated recordings, each with a label.

    A sample is a window, [window, 1, channels], by default scaled to mean 0 and deviation 1 per
    channel. The official test samples are from the last part of each recording, so that no training
    window overlaps a test window.

    Args:
      data_dir: a file with `recordings` [total, channels], `lengths` [R] that add up to total, and
        `labels` [R], whole numbers or words. Every other array [R] is a column, for the rule
        `by_column`.
      window: length of a window.
      step: distance between the beginnings of two windows; None for a window's length, without
        overlap.
      test_fraction: part of each recording for testing, in [0, 1).
      task: "classification"; "regression" for numbers to predict, [R] or [R, K]; "multi_label" for
        0 or 1, [R, K].
    """
    require(task in TASKS, "task of recordings", task, ", ".join(map(repr, TASKS)))
    require_whole("window", window, 1)
    step = window if step is None else require_whole("step", step, 1)
    tested = number("test_fraction", test_fraction, "in [0, 1)", high=1)
    require(tested < 1, "test_fraction", test_fraction, "in [0, 1)")
    known = npz_names(data_dir)
    arrays = read_npz(data_dir, ARRAYS, [name for name in known if name not in ARRAYS])
    signal, lengths, labels = (arrays.pop(name) for name in ARRAYS)
    fits = signal.ndim == 2 and signal.dtype.kind == "f" and signal.shape[1] > 0
    what = f"recordings in {data_dir}"
    require(fits, what, f"{signal.dtype} {signal.shape}", "floats [total, channels]")
    integers = lengths.ndim == 1 and lengths.dtype.kind in "iu" and len(lengths) > 0
    # In Python's integers, which don't wrap around.
    adds_up = integers and int(lengths.min()) >= 0 and sum(lengths.tolist()) == len(signal)
    allowed = f"whole numbers that add up to {len(signal)}, the length of all recordings"
    require(adds_up, f"lengths in {data_dir}", lengths, allowed)
    lengths = lengths.astype(np.int64)
    about: dict[str, Any] = {"task": task}
    if task == CLASSES:
        columns = checked_columns(data_dir.stem, {"labels": labels, **arrays}, len(lengths))
        classes, of_recording = np.unique(columns.pop("labels"), return_inverse=True)
        about = {"num_classes": len(classes), "class_names": tuple(map(str, classes))}
    else:
        columns = checked_columns(data_dir.stem, arrays, len(lengths))
        what = f"labels in {data_dir}"
        of_recording = checked_labels(what, labels, len(lengths), task, (), None)

    ends = np.cumsum(lengths)
    cuts = ends - (tested * lengths).astype(np.int64)
    parts, who = [], []
    for lows, highs in ((ends - lengths, cuts), (cuts, ends)):  # for training, for testing
        begins = [np.arange(low, high - window + 1, step)
                  for low, high in zip(lows, highs, strict=True)]  # fmt: skip
        first, owner = np.concatenate(begins), np.repeat(np.arange(len(ends)), [*map(len, begins)])
        if not parts and not len(first):
            raise InputError(
                f"No recording in {data_dir} has a window of {window} time steps to train on: the "
                f"longest has {lengths.max()}, {tested:g} of them for testing."
            )
        require_memory(f"The windows of {data_dir}", 4 * len(first) * window * signal.shape[1])
        at = first[:, None] + np.arange(window)
        parts += [signal[at].astype(np.float32)[:, :, None], of_recording[owner]]
        who.append(owner)
    untested = np.setdiff1d(np.arange(len(ends)), who[1]).tolist() if tested else []
    if len(untested) == len(ends):
        raise InputError(
            f"No recording in {data_dir} has a window of {window} time steps to test on, in its "
            f"last part of {tested:g}: change window or test_fraction, 0 for no test samples."
        )
    if not tested:
        parts, who = parts[:2], who[:1]
    some = ", ".join(map(str, untested[:5])) + ", ..." * (len(untested) > 5)
    of_window = np.concatenate(who)
    return dataset_from_arrays(
        data_dir.stem,
        *parts,
        input_scaling="standard",
        note=f"no test window of {len(untested)} recordings: {some}" if untested else "",
        columns={name: values[of_window] for name, values in columns.items()},
        **about,
    )
