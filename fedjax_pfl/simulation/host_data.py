"""Samples that lie in host memory, of which programs get those of some clients."""

from dataclasses import replace

import jax
import numpy as np

from fedjax_pfl.data.federated import FederatedData

SPLITS = ("train", "validation", "test")


class HostData:
    """All clients' samples on the host; `of` cuts out those of some clients.

    Attributes:
      shell: the data without any sample, on the device: sizes, classes and ids of all clients.
    """

    def __init__(self, data: FederatedData):
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
        few = replace(data, samples=self.samples[:1], labels=self.labels[:1], **none)
        self.shell: FederatedData = jax.device_put(few)

    def most(self, split: str, clients: int) -> int:
        """The most samples of a split that so many clients hold together; at least 1."""
        return max(int(np.sort(self.size[split])[::-1][:clients].sum(dtype=np.int64)), 1)

    def of(self, rows: np.ndarray, splits: tuple[str, ...], most: int) -> FederatedData:
        """The data with the samples of clients alone: their own of the named splits.

        Arrays have the same shapes for the same splits and `most`.

        Args:
          rows: int [any], the clients, in any order; they may repeat.
          most: how many different clients there may be.
        """
        rows, pools, parts, start = np.unique(rows), [], {}, 0
        for name in splits:
            size, room = self.size[name][rows], self.most(name, most)
            places = [
                self.index[name][at : at + count]
                for at, count in zip(self.offset[name][rows], size, strict=True)
            ]
            pool = np.zeros(room, np.int32)  # what is left over repeats a sample
            held = np.concatenate(places) if places else pool[:0]
            pool[: len(held)] = held
            offset = np.zeros_like(self.offset[name])
            offset[rows] = np.cumsum(size) - size
            index = np.arange(start, start + room, dtype=np.int32)
            parts[name] = replace(self.shell.split(name), index=index, offset=offset)
            pools.append(pool)
            start += room
        places = np.concatenate(pools) if pools else np.zeros(1, np.int32)
        samples, labels = self.samples[places], self.labels[places]
        return replace(self.shell, samples=samples, labels=labels, **parts)
