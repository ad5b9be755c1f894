"""Dealing of samples to clients by planned class counts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedjax_pfl.utils.errors import require_whole

Strata = list[np.ndarray]  # one client's samples: shuffled pool indices


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples to deal.

    Attributes:
      idx: pool indices [n].
      labels: their labels [n].
      num_classes: C.
      what: their name in messages.
      columns: the data set's columns, [n] by name.
      inputs: the samples themselves [n, ...], for rules that declare `sees_inputs`; else None.
    """

    idx: np.ndarray
    labels: np.ndarray
    num_classes: int
    what: str
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    inputs: np.ndarray | None = None

    def counts(self) -> np.ndarray:
        """Return the number of samples per class [C]."""
        return np.bincount(self.labels, minlength=self.num_classes)

    def decks(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return the pool indices of each class, shuffled."""
        return [rng.permutation(self.idx[self.labels == c]) for c in range(self.num_classes)]

    def class_sets(self, rows: int, name: str, each: int, rng: np.random.Generator) -> np.ndarray:
        """Return random sets of `each` classes that occur [rows, each], see `class_sets`.

        Raises:
          InputError: `each`, the option `name`, is no number of classes that occur.
        """
        present = np.flatnonzero(self.counts())
        require_whole(name, each, 1, len(present))
        return present[class_sets(len(present), rows, each, rng)]

    def membership(self, sets: np.ndarray) -> np.ndarray:
        """Return whether each client has each class, bool [N, C], of sets of classes [N, k]."""
        members = np.zeros((len(sets), self.num_classes), bool)
        np.put_along_axis(members, sets, True, axis=1)
        return members


Deal = Callable[[Samples, np.random.Generator], list[Strata]]


def joined(strata: Strata) -> np.ndarray:
    """Concatenate strata."""
    return np.concatenate([np.zeros(0, np.int64), *strata])


def apportion(total: int, weights: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return integers in proportion to `weights` that sum to `total`, by largest remainders."""
    weights = np.asarray(weights, np.int64)
    exact = total * weights
    parts = exact // max(weights.sum(), 1)
    rest = np.argsort(-(exact - parts * weights.sum()), kind="stable")[: total - parts.sum()]
    parts[rest] += 1
    return parts


def deal_counts(decks: list[np.ndarray], counts: np.ndarray) -> list[Strata]:
    """Deal `counts` [clients, C] samples from the decks; one stratum per client and class."""
    dealt = [[] for _ in counts]
    for deck, ends in zip(decks, np.cumsum(counts, axis=0).T, strict=True):
        for strata, stratum in zip(dealt, np.split(deck, ends)[:-1], strict=True):
            if len(stratum):
                strata.append(stratum)
    return dealt


def deal_alike(counts: np.ndarray, planned: np.ndarray) -> Deal:
    """Deal any samples in the proportions of `counts` [N, C] of `planned` [C] samples.

    Every class is cut at the same fractions, to the nearest sample; the planned samples are dealt
    exactly. A client's samples are one shuffled stratum.
    """
    planned = np.maximum(planned, 1)

    def deal(samples, rng):
        ends = (2 * np.cumsum(counts, axis=0) * samples.counts() + planned) // (2 * planned)
        dealt = deal_counts(samples.decks(rng), np.diff(ends, axis=0, prepend=0))
        return [[rng.permutation(joined(strata))] for strata in dealt]

    return deal


def class_sets(num_classes: int, rows: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Return random sets of distinct classes [rows, each]; classes are used evenly (+-1)."""
    quota = np.full(num_classes, rows * each // num_classes)
    quota[rng.permutation(num_classes)[: rows * each % num_classes]] += 1
    sets = []
    for left in range(rows, 0, -1):
        # Draws without replacement in proportion to what is left (Gumbel's trick). A class that
        # every remaining row must have comes first, so the last rows never run out of classes.
        score = np.log(np.maximum(quota, 1e-300)) + rng.gumbel(size=num_classes)
        score[quota == 0] = -np.inf
        score[quota == left] = np.inf
        sets.append(np.sort(np.argsort(-score, kind="stable")[:each]))
        quota[sets[-1]] -= 1
    return np.array(sets)


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """Return the largest fitting number in low..high, or `low`; smaller ones than it must fit."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
