"""Turns planned counts into index lists: each class is a deck that is cut and dealt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

Strata = list[np.ndarray]  # one client's samples: shuffled pool indices


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples to deal.

    Attributes:
      idx: pool indices [n].
      labels: their labels [n].
      num_classes: C.
      what: their name in sentences.
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
        """Samples per class [C]."""
        return np.bincount(self.labels, minlength=self.num_classes)

    def decks(self, rng: np.random.Generator) -> list[np.ndarray]:
        """The pool indices of each class, shuffled."""
        return [rng.permutation(self.idx[self.labels == c]) for c in range(self.num_classes)]


Deal = Callable[[Samples, np.random.Generator], list[Strata]]


def joined(strata: Strata) -> np.ndarray:
    """All samples of some strata, one after the other."""
    return np.concatenate([np.zeros(0, np.int64), *strata])


def apportion(total: int, weights) -> np.ndarray:
    """Integers in proportion to `weights` that sum to `total`, by largest remainders."""
    weights = np.asarray(weights, np.int64)
    exact = total * weights
    parts = exact // max(weights.sum(), 1)
    rest = np.argsort(-(exact - parts * weights.sum()), kind="stable")[: total - parts.sum()]
    parts[rest] += 1
    return parts


def deal_counts(decks: list[np.ndarray], counts: np.ndarray) -> list[Strata]:
    """Deals `counts` [clients, C] samples from the decks; one stratum per client and class."""
    dealt = [[] for _ in counts]
    for deck, ends in zip(decks, np.cumsum(counts, axis=0).T, strict=True):
        for strata, stratum in zip(dealt, np.split(deck, ends)[:-1], strict=True):
            if len(stratum):
                strata.append(stratum)
    return dealt


def deal_alike(counts: np.ndarray, planned: np.ndarray) -> Deal:
    """Deals any samples as `counts` [N, C] deals classes of `planned` [C] samples.

    Every class is cut at the same places, to the nearest sample: exactly so for the samples that
    were planned on. A client's samples come as one shuffled stratum.
    """
    planned = np.maximum(planned, 1)

    def deal(samples, rng):
        ends = (2 * np.cumsum(counts, axis=0) * samples.counts() + planned) // (2 * planned)
        dealt = deal_counts(samples.decks(rng), np.diff(ends, axis=0, prepend=0))
        return [[rng.permutation(joined(strata))] for strata in dealt]

    return deal


def class_sets(num_classes: int, rows: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Random sets of `each` distinct classes [rows, each]; classes are used evenly (+-1)."""
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
    """The largest number in low..high that fits, or `low`, if what fits ends somewhere."""
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
