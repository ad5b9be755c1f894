"""Checks of partitions: offsets, label maps, indices and overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedjax_pfl.data.corruptions import KINDS, STRENGTHS
from fedjax_pfl.data.limits import require_memory
from fedjax_pfl.data.partitions import statistics
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.utils.errors import InputError, require, require_whole

if TYPE_CHECKING:
    from fedjax_pfl.data.partitions.partition import Partition


def validate(partition: Partition, num_samples: int, num_classes: int, labels: ArrayLike) -> None:
    """Check a partition against a pool; see `Partition.validate`."""
    check_offsets(partition)
    require_whole("num_classes", num_classes, 1)
    require_room(partition.num_clients, num_classes)
    require(num_samples > 0, "Number of samples", num_samples, "at least 1")
    count = len(checked_labels(labels, num_classes))
    require(count == num_samples, "Number of labels", count, f"{num_samples}")
    for split in SPLITS:
        ragged = partition.split(split)
        outside = ragged.idx[(ragged.idx < 0) | (ragged.idx >= num_samples)]
        shown = int(outside[0]) if len(outside) else None
        require(shown is None, f"Sample indices ({split})", shown, f"in 0..{num_samples - 1}")
        keys = np.sort(ragged.owners() * num_samples + ragged.idx)
        twice = keys[1:][keys[1:] == keys[:-1]]
        if len(twice):
            client, sample = divmod(int(twice[0]), num_samples)
            raise InputError(f"Sample {sample} is listed twice in {split} of client {client}.")
    if partition.label_map is not None:
        check_label_map(partition, num_classes)
    check_feature_shift(partition)
    repeated = np.flatnonzero(statistics.holders(partition) > 1)
    if len(repeated) and not partition.allow_overlap:
        places = [
            f"{split} of client {client}"
            for split in SPLITS
            for client in partition.split(split).owners()[partition.split(split).idx == repeated[0]]
        ]
        raise InputError(
            f"Sample {repeated[0]} is held more than once ({' and '.join(places[:3])}), which rule "
            f"{partition.rule!r} doesn't allow; {len(repeated)} samples are."
        )


def check_offsets(partition: Partition) -> None:
    """Raise `InputError` unless the offsets describe N lists for each split."""
    for split in SPLITS:
        idx, offsets = partition.split(split)
        name = f"Offsets of the {split} lists"
        flat = idx.ndim == 1 and offsets.ndim == 1
        require(flat, f"Shape of the {split} lists", (idx.shape, offsets.shape), "flat")
        require(len(offsets) >= 2, name, len(offsets), "at least 2 numbers: 1 client or more")
        lists = len(partition.train.offsets)
        fits = len(offsets) == lists
        require(fits, name, len(offsets), f"{lists} numbers, as for training")
        falls = np.flatnonzero(np.diff(offsets) < 0)[:1]
        shown = [f"{offsets[k]}, then {offsets[k + 1]}" for k in falls]
        require(not shown, name, shown, "non-decreasing")
        ends = (int(offsets[0]), int(offsets[-1]))
        require(ends == (0, len(idx)), name, ends, f"from 0 to {len(idx)}, the number of indices")


def checked_labels(labels: ArrayLike, num_classes: int) -> np.ndarray:
    """Return the labels of a pool [n]; `InputError` unless they are whole numbers in 0..C-1."""
    labels = np.asarray(labels)
    what = f"a list of whole numbers in 0..{num_classes - 1}"
    known = labels.ndim == 1 and labels.dtype.kind in "iu"
    require(known, "Labels of the pool", f"{labels.dtype} {labels.shape}", what)
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    require(low >= 0 and high < num_classes, "Labels of the pool", f"{low}..{high}", what)
    return labels


def check_label_map(partition: Partition, num_classes: int) -> None:
    """Raise `InputError` unless the label map is [N, C] with labels in 0..C-1."""
    expected = (partition.num_clients, num_classes)
    label_map = np.asarray(partition.label_map)
    require(label_map.shape == expected, "Label map", label_map.shape, f"{expected}")
    require(label_map.dtype.kind in "iu", "Type of the label map", str(label_map.dtype), "integer")
    low, high = int(label_map.min()), int(label_map.max())
    inside = low >= 0 and high < num_classes
    require(inside, "Label map", f"{low}..{high}", f"in 0..{num_classes - 1}")


def check_feature_shift(partition: Partition) -> None:
    """Raise `InputError` unless turns [N] are in 0..3, and corruptions [N, 2] known ones."""
    limits = {"turns": ((), 3), "corruption": ((2,), (len(KINDS), STRENGTHS))}
    for name, (shape, high) in limits.items():
        table = getattr(partition, name)
        if table is None:
            continue
        called, expected = name.capitalize(), (partition.num_clients, *shape)
        require(table.shape == expected, f"Shape of the {name}", table.shape, f"{expected}")
        bad = (table < 0) | (table > np.asarray(high))
        allowed = f"in 0..{high}" if name == "turns" else f"(0, 0), or (1..{high[0]}, 1..{high[1]})"
        if name == "corruption":  # a kind without strength, or a strength without kind
            bad |= ((table == 0).any(axis=1) & table.any(axis=1))[:, None]
        rows = table[bad.reshape(len(table), -1).any(axis=1)]
        require(not len(rows), called, rows[:1].tolist(), allowed)


def require_room(num_clients: int, num_classes: int) -> None:
    """Raise `InputError` if tables of clients and classes don't fit into memory."""
    what = f"A table of {num_clients:,} clients and {num_classes:,} classes"
    require_memory(what, 8 * num_clients * num_classes)
