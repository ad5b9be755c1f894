"""What an attacker's guesses prove about epsilon, from statistics of many runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import betaincinv

THRESHOLDS = 401
CONFIDENCE = 0.95  # probability that all lower bounds of an audit hold


@dataclass(frozen=True)
class Audit:
    """Stated epsilons and what an attack proves, at several deltas.

    Attributes:
      deltas: [K].
      stated: [K], the stated epsilon at each delta.
      lower: [K], lower bounds of epsilon that hold together at the confidence of the audit.
      runs: number of runs with the contribution, and of those without it.
      present, absent: [runs], the attack's statistic with the contribution and without it; that
        of the delta at which `lower` comes closest to `stated`, or exceeds it by most.
    """

    deltas: np.ndarray
    stated: np.ndarray
    lower: np.ndarray
    runs: int
    present: np.ndarray
    absent: np.ndarray

    @property
    def holds(self) -> bool:
        """Whether no lower bound exceeds the stated epsilon."""
        return bool((self.lower <= self.stated).all())

    def __str__(self) -> str:
        """Format a line for each delta."""
        lines = [f"delta      stated  at least  ({self.runs} runs each)"]
        for delta, stated, lower in zip(self.deltas, self.stated, self.lower, strict=True):
            mark = "" if lower <= stated else "  VIOLATED"
            lines.append(f"{delta:<9g}{stated:8.3f}{lower:10.3f}{mark}")
        return "\n".join(lines)


def attacked(
    pairs: Iterable[tuple[Any, Any]],
    deltas: Sequence[float],
    stated: Sequence[float],
) -> Audit:
    """Return the audit of pairs of what is released [S, F] with and without a contribution.

    On the first half of the runs the attack learns the statistic, a weighted sum of all numbers,
    and chooses pair, direction of the guess and threshold for each delta. Bounds are of the second
    half, so the choice does not bias them.
    """
    alpha = (1 - CONFIDENCE) / (2 * len(deltas))  # two rates for each delta
    guesses, statistics = [], []
    for pair in pairs:
        present, absent = (np.asarray(seen, np.float64) for seen in pair)
        half = len(present) // 2
        weights = _weights(present[:half], absent[:half])
        yes, no = present @ weights, absent @ weights
        guesses += [Guess(yes, no, half, alpha), Guess(-no, -yes, half, alpha)]
        statistics += 2 * [(yes, no)]
    lower, used = [], []
    for delta in deltas:
        learned = [bounds_of(guess.learned, delta) for guess in guesses]
        best = int(np.argmax([bounds.max() for bounds in learned]))
        threshold = int(learned[best].argmax())
        lower.append(bounds_of(guesses[best].held_out(threshold), delta).item())
        used.append(statistics[best])
    present, absent = used[int(np.argmax(np.subtract(lower, stated)))]
    arrays = (np.array(deltas), np.array(stated), np.array(lower))
    return Audit(*arrays, len(present), present, absent)


class Guess:
    """The rates of guesses beyond thresholds, of a statistic [S] with and without a contribution.

    Attributes:
      yes, no: the statistic, on the side of the guess.
      learned: bounds of the rates at all thresholds, on the first `half` of the runs.
    """

    def __init__(self, yes: np.ndarray, no: np.ndarray, half: int, alpha: float):
        self.yes, self.no, self._half, self._alpha = yes, no, half, alpha
        seen = np.concatenate([yes[:half], no[:half]])
        self._thresholds = np.quantile(seen, np.linspace(0, 1, THRESHOLDS))
        self.learned = rates_of(yes[:half], no[:half], self._thresholds, alpha)

    def held_out(self, threshold: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the bounds at one threshold, on the second half of the runs."""
        rest = slice(self._half, None)
        chosen = self._thresholds[threshold, None]
        return rates_of(self.yes[rest], self.no[rest], chosen, self._alpha)


def _weights(present: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Return the weights [F] of the linear statistic, the best one for independent numbers."""
    spread = (present.var(axis=0) + absent.var(axis=0)) / 2
    least = max(1e-9 * spread.max(), 1e-30)  # for numbers without noise
    return (present.mean(axis=0) - absent.mean(axis=0)) / np.maximum(spread, least)


def rates_of(
    yes: np.ndarray, no: np.ndarray, thresholds: np.ndarray, alpha: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return (a lower bound of P(yes), an upper bound of P(no)) to be beyond each threshold.

    By Clopper and Pearson (1934), each with confidence 1 - alpha.
    """
    count = len(yes)
    right, wrong = (count - np.searchsorted(np.sort(x), thresholds) for x in (yes, no))
    least = betaincinv(np.maximum(right, 1), count - right + 1, alpha)
    most = betaincinv(wrong + 1, np.maximum(count - wrong, 1), 1 - alpha)
    return np.where(right > 0, least, 0), np.where(wrong < count, most, 1)


def bounds_of(rates: tuple[np.ndarray, np.ndarray], delta: float) -> np.ndarray:
    """Return lower bounds of epsilon of `rates_of`, since P(yes) <= exp(epsilon) P(no) + delta."""
    least, most = rates
    return np.log(np.maximum((least - delta) / most, 1))
