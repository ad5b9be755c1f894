"""Training data of Byzantine clients: flipped labels and backdoors.

Poisoned samples are copies at the end of the pool that only the attackers hold, so that no other
client's samples change, even where a partition lets clients share them. Attackers' test samples
stay as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.ragged import Ragged
from fedjax_pfl.utils.errors import InputError, require, require_name, require_whole

# change(samples [k, ...], labels [k], which attacker, `brightness`) -> (samples, labels)
Change = Callable[[np.ndarray, np.ndarray, int, float], tuple[np.ndarray, np.ndarray]]
CORNERS = ("bottom_right", "top_left")


def poison(
    dataset: Dataset, partition: Partition, attackers: Sequence[int], change: Change
) -> tuple[Dataset, Partition]:
    """Return a data set and partition whose attackers train on changed copies of their samples.

    Args:
      dataset: with classes.
      partition: of it.
      attackers: rows of the client axis.
      change: makes the poisoned samples and labels of one attacker.

    Raises:
      InputError: no such client, or labels that are not classes.
    """
    require(dataset.has_classes, "Task of poisoned data", dataset.task, "classification")
    clients = sorted(set(attackers))
    for client in clients:
        require_whole("attacker", client, 0, partition.num_clients - 1)
    samples, labels = dataset.pool()
    train = [partition.client("train", i) for i in range(partition.num_clients)]
    new_x, new_y, size = [dataset.test_x], [dataset.test_y], len(labels)
    bright = brightness(dataset, partition)
    for number, client in enumerate(clients):
        held = train[client]
        x, y = change(samples[held], labels[held], number, bright)
        new_x.append(x.astype(samples.dtype))
        new_y.append(y.astype(labels.dtype))
        train[client] = np.arange(size, size + len(held), dtype=np.int32)
        size += len(held)
    poisoned = replace(
        dataset, test_x=np.concatenate(new_x), test_y=np.concatenate(new_y), columns={}
    )
    options = {**partition.options, "attackers": clients}
    # No corruption: `dataset` has the corrupted samples.
    changed = replace(partition, train=Ragged.of(train), corruption=None, options=options)
    return poisoned, changed


def brightness(dataset: Dataset, partition: Partition) -> float:
    """Return the largest value of clients' training samples, such as 255 in images of bytes."""
    lists = [rows for rows in partition.train.lists() if len(rows)]
    return max((dataset.samples(rows).max().item() for rows in lists), default=0)


@dataclass(frozen=True)
class LabelFlip:
    """Wrong labels for all of an attacker's samples.

    Attributes:
      num_classes: C.
      how: "mirror" makes y the class C - 1 - y; "random" draws classes once, before the run.
      seed: of the draws.
    """

    num_classes: int
    how: Literal["mirror", "random"] = "mirror"
    seed: int = field(default=0, metadata={"needs": "how='random'"})

    def __post_init__(self) -> None:
        require_name("label flip", self.how, ("mirror", "random"))

    def __call__(self, x: np.ndarray, y: np.ndarray, number: int, bright: float):
        if self.how == "mirror":
            return x, self.num_classes - 1 - y
        rng = np.random.default_rng((self.seed, number))
        return x, rng.integers(0, self.num_classes, len(y))


@dataclass(frozen=True)
class Backdoor:
    """A bright square on a share of an attacker's images, which are labelled as one class.

    Bagdasaryan et al., AISTATS 2020; with `distributed` each attacker has one of the four quarters
    of the trigger, and only tests show all of it (DBA, Xie et al., ICLR 2020).

    Attributes:
      target: the class that triggered images are labelled as.
      share: of the attacker's samples that have the trigger, in (0, 1].
      size: of the square's sides, in pixels.
      corner: where the square is.
      distributed: whether attackers share out the trigger.
      seed: of the choice of samples.
      factor: of the attackers' updates, which are sent larger (model replacement); 1 for none.
    """

    target: int = 0
    share: float = 0.5
    size: int = 4
    corner: str = "bottom_right"
    distributed: bool = False
    seed: int = 0
    factor: float = 1.0

    def __post_init__(self) -> None:
        require_whole("target", self.target, 0)
        require_whole("size of the trigger", self.size, 2)
        require(0 < self.share <= 1, "share", self.share, "a fraction in (0, 1]")
        require_name("corner", self.corner, CORNERS)

    def __call__(self, x: np.ndarray, y: np.ndarray, number: int, bright: float):
        rng = np.random.default_rng((self.seed, number))
        count = int(np.ceil(self.share * len(y) - 1e-9))  # 0.07 * 100 is above 7
        chosen = rng.permutation(len(y))[:count]
        x, y = x.copy(), y.copy()
        x[chosen] = self.triggered(x[chosen], bright, number % 4 if self.distributed else None)
        y[chosen] = self.target
        return x, y

    def triggered(self, x: np.ndarray, bright: float, quarter: int | None = None) -> np.ndarray:
        """Return images [k, h, w, c] with the trigger, or one quarter of it, of value `bright`."""
        if x.ndim != 4 or min(x.shape[1:3]) < self.size:
            raise InputError(
                f"A backdoor must have images of at least {self.size}x{self.size} pixels, got "
                f"samples of shape {x.shape[1:]}."
            )
        mask = self.mask(x.shape[1], x.shape[2], quarter)
        return np.where(mask, np.asarray(bright, x.dtype), x)

    def mask(self, height: int, width: int, quarter: int | None = None) -> np.ndarray:
        """Return the pixels of the trigger, bool [h, w, 1]."""
        square = np.ones((self.size, self.size), bool)
        if quarter is not None:
            half = self.size // 2
            rows, columns = np.indices(square.shape)
            square = ((rows >= half) == (quarter // 2)) & ((columns >= half) == (quarter % 2))
        mask = np.zeros((height, width, 1), bool)
        if self.corner == "bottom_right":
            mask[-self.size :, -self.size :, 0] = square
        else:
            mask[: self.size, : self.size, 0] = square
        return mask
