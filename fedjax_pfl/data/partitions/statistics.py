"""Statistics of a partition: sizes, classes per client, and heterogeneity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from fedjax_pfl.data.partitions.partition import Partition

SPLITS = ("train", "test", "validation")


def holders(partition: Partition) -> np.ndarray:
    """Return the number of lists that contain each sample, up to the largest index."""
    return np.bincount(np.concatenate([partition.split(split).idx for split in SPLITS]))


def overlaps(partition: Partition) -> tuple[int, int]:
    """Return the numbers of samples of several clients, and of samples in two splits of one."""
    ragged = [partition.split(split) for split in SPLITS]
    width = max(int(one.idx.max(initial=0)) for one in ragged) + 1
    keys = np.concatenate([one.owners() * width + one.idx for one in ragged])
    pairs, times = np.unique(keys, return_counts=True)
    return int(np.sum(np.bincount(pairs % width) > 1)), int(np.sum(times > 1))


def report(
    partition: Partition, labels: ArrayLike, num_classes: int, fewer_than: int = 10
) -> dict[str, Any]:
    """Return facts about a partition, for JSON.

    Args:
      partition: any partition of the pool.
      labels: labels of the pool (`Dataset.labels`).
      num_classes: C.
      fewer_than: clients with fewer training samples than this count as small.

    Returns:
      `num_clients`; `sizes` {split: {min, mean, max}}; `unused_samples` of the pool;
      `overlapping_samples` of several clients; `leaked_samples`, the (client, sample) pairs in two
      splits of the same client; `small_clients` and `clients_without_test` (numbers of clients);
      `mean_classes` per client in training; `fallback_used` if the rule reports it; `hash`.
    """
    train, test = partition.sizes("train"), partition.sizes("test")
    shared, leaked = overlaps(partition)
    counts = partition.class_counts(labels, num_classes)
    facts = {
        "num_clients": partition.num_clients,
        "sizes": {split: _spread(partition.sizes(split)) for split in SPLITS},
        "unused_samples": np.size(labels) - int(np.sum(holders(partition) > 0)),
        "overlapping_samples": shared,
        "leaked_samples": leaked,
        "small_clients": int(np.sum(train < fewer_than)),
        "clients_without_test": int(np.sum(test == 0)),
        "mean_classes": float(np.mean(np.sum(counts > 0, axis=1))),
        "hash": partition.hash(),
    }
    if "fallback_used" in partition.options:
        facts["fallback_used"] = partition.options["fallback_used"]
    return facts


def partition_statistics(
    partition: Partition, labels: ArrayLike, num_classes: int, split: str = "train"
) -> dict[str, Any]:
    """Return measures of the clients' heterogeneity, for JSON; None without samples.

    Labels are counted as the clients see them, after `label_map`.

    Args:
      partition: any partition of the pool.
      labels: labels of the pool.
      num_classes: C.
      split: whose labels are counted: "train", "test" or "validation".

    Returns:
      the facts of `report`, and
      `client_sizes`: {split: samples of each client};
      `classes_per_client`: {min, mean, max} of a client's number of classes;
      `effective_classes`: {min, mean, max} of exp(entropy) of a client's class shares: C for
        uniform shares, 1 for a single class;
      `total_variation`: {mean, max} over pairs of clients of half the L1 distance of their class
        shares: 0 for equal shares, 1 without a common class;
      `label_disagreement`: with a label map, the mean over pairs of clients of the fraction of
        classes for which they see different labels, otherwise None.
    """
    counts = partition.class_counts(labels, num_classes, split)
    nonempty = counts[counts.sum(axis=1) > 0]
    shares = nonempty / nonempty.sum(axis=1, keepdims=True)
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    label_map = partition.label_map
    return report(partition, labels, num_classes) | {
        "split": split,
        "client_sizes": {name: partition.sizes(name).tolist() for name in SPLITS},
        "classes_per_client": _spread(np.sum(nonempty > 0, axis=1)),
        "effective_classes": _spread(np.exp(-np.sum(shares * logs, axis=1))),
        "total_variation": _total_variation(shares),
        "label_disagreement": None if label_map is None else _disagreement(label_map),
    }


def _total_variation(shares: np.ndarray) -> dict[str, float | None]:
    """Return mean and maximum half L1 distance of pairs of rows; None with fewer than two."""
    n = len(shares)
    if n < 2:
        return {"mean": None, "max": None}
    # A gap between neighbours of a sorted column lies between every row below and every row above.
    gaps = np.diff(np.sort(shares, axis=0), axis=0)
    below = np.arange(1, n)
    distance = np.sum(gaps * (below * (n - below))[:, None]) / 2
    return {"mean": float(distance / (n * (n - 1) / 2)), "max": _largest_distance(shares)}


def _largest_distance(shares: np.ndarray) -> float:
    """Return the largest half L1 distance of two rows that sum to 1."""
    rows = np.unique(shares, axis=0)
    held = (rows > 0).astype(np.float32)
    if any(np.any(held[i : i + 1024] @ held.T == 0) for i in range(0, len(rows), 1024)):
        return 1.0  # two clients without a common class: the maximum
    block, top = max(1, 2**22 // rows.size), 0.0
    for i in range(0, len(rows), block):
        apart = np.abs(rows[i : i + block, None] - rows[None, i:]).sum(axis=2)
        top = max(top, float(apart.max()) / 2)
    return top


def _disagreement(label_map: np.ndarray) -> float | None:
    """Return the mean fraction of columns in which pairs of rows differ."""
    n, num_classes = label_map.shape
    if n < 2:
        return None
    times = [np.unique(column, return_counts=True)[1] for column in label_map.T]
    alike = sum(int(np.sum(counts * (counts - 1))) for counts in times)
    return 1 - alike / (n * (n - 1) * num_classes)


def _spread(values: np.ndarray) -> dict[str, float | None]:
    if len(values) == 0:
        return {"min": None, "mean": None, "max": None}
    low, high = values.min().item(), values.max().item()
    return {"min": low, "mean": float(values.mean()), "max": high}


def summary(partition: Partition) -> str:
    """Return lines on rule, sizes of each split, shift in features, overlap and hash."""
    lines = [f"{partition.num_clients} clients by rule {partition.rule!r}"]
    if partition.options.get("fallback_used"):
        lines[0] += " (samples moved to reach the minimum size)"
    for split in SPLITS:
        sizes = _spread(partition.sizes(split))
        if sizes["mean"] is not None:
            low, mean, high = sizes.values()
            lines.append(f"{split}: {low} to {high} samples a client, mean {mean:.1f}")
    if partition.turns is not None:
        lines.append(
            f"quarter turns: {np.bincount(partition.turns, minlength=4)} clients by 0 to 3"
        )
    if partition.corruption is not None:
        lines.append(f"{np.sum(partition.corruption[:, 0] > 0)} clients with corrupted images")
    shared, leaked = overlaps(partition)
    overlap_line = f"{shared} samples held by several clients, {leaked} in two splits of one client"
    return "\n".join([*lines, f"{overlap_line}, hash {partition.hash()[:12]}"])
