"""Samples in host memory, with selection of some clients' samples for programs."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.data.partitions.statistics import SPLITS


class HostData:
    """All clients' samples on the host.

    Attributes:
      shell: the data without samples, on the device: sizes, classes and ids of all clients.
      own: bool [N], clients whose samples are in this process, or None for all; others are zeros.
    """

    def __init__(self, data: FederatedData):
        self.own = None if data.own is None else np.asarray(data.own)
        self.samples, self.labels = np.asarray(data.samples), np.asarray(data.labels)
        self.index, self.offset, self.size = (
            {name: np.asarray(getattr(data.split(name), part)) for name in SPLITS}
            for part in ("index", "offset", "size")
        )
        none = {
            name: replace(
                data.split(name), index=np.zeros(1, np.int32), offset=np.zeros_like(offset)
            )
            for name, offset in self.offset.items()
        }
        one = self.samples[:1], self.labels[:1]
        few = replace(data, samples=one[0], labels=one[1], own=None, digest="", **none)
        self.shell: FederatedData = jax.tree.map(_on_device, few)

    def capacity(self, split: str, num_clients: int) -> int:
        """Return the most samples of any `num_clients` clients in a split, at least 1."""
        return max(int(np.sort(self.size[split])[::-1][:num_clients].sum(dtype=np.int64)), 1)

    def of(self, rows: np.ndarray, splits: tuple[str, ...], max_clients: int) -> FederatedData:
        """Return the data with the samples of some clients in the named splits.

        Shapes depend only on `splits` and `max_clients`.

        Args:
          rows: int [any], the clients, in any order, with repetitions.
          splits: names of splits.
          max_clients: largest number of different clients.
        """
        rows, pools, held, start = np.unique(rows), [], [], 0
        parts = {name: replace(self.shell.split(name), index=None) for name in SPLITS}
        here = rows[self.own[rows]] if self.own is not None else rows
        for name in splits:
            size, room = self.size[name][rows], self.capacity(name, max_clients)
            offset = np.zeros_like(self.offset[name])
            offset[rows] = np.cumsum(size) - size
            pool = np.zeros(room, np.int32)  # padding repeats a sample
            mine = np.zeros(room, bool)
            for row, at in zip(here, offset[here], strict=True):
                part = slice(at, at + self.size[name][row])
                first = self.offset[name][row]
                pool[part] = self.index[name][first : first + self.size[name][row]]
                mine[part] = True
            index = np.arange(start, start + room, dtype=np.int32)
            parts[name] = replace(parts[name], index=index, offset=offset)
            pools.append(pool)
            held.append(mine)
            start += room
        indices = np.concatenate(pools) if pools else np.zeros(1, np.int32)
        samples, labels = self.samples[indices], self.labels[indices]
        if self.own is not None:
            others = ~np.concatenate([*held, np.zeros(0 if held else 1, bool)])
            samples[others] = labels[others] = 0
        return replace(self.shell, samples=samples, labels=labels, **parts)


def _on_device(leaf: Any) -> jax.Array:
    """Put a leaf on the device unless it is on devices already."""
    return leaf if isinstance(leaf, jax.Array) else jax.device_put(leaf)
