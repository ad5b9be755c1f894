"""Measures of how good a model is: their names, and in which direction they are better."""

import math
from typing import Any, NamedTuple

import numpy as np

HIGHER, LOWER = "higher", "lower"
BETTER = (HIGHER, LOWER)
TITLES = {
    "mse": "MSE", "mae": "MAE", "r2": "R2", "auc": "AUC", "ece": "ECE", "macro_f1": "Macro F1",
}  # fmt: skip
# The least and the largest value of those that are no fractions.
RANGES = {
    "mse": (0.0, math.inf), "mae": (0.0, math.inf), "perplexity": (1.0, math.inf),
    "r2": (-math.inf, 1.0),
}  # fmt: skip


class Measure(NamedTuple):
    """A number that every client's model has on a split.

    Attributes:
      name: in scores, such as "accuracy".
      better: "higher" or "lower".
      fraction: whether it lies in 0..1; tables then show percentages.
      pools: whether its mean weighted by samples is its value over all clients' samples.
    """

    name: str
    better: str = HIGHER
    fraction: bool = True
    pools: bool = False

    @property
    def higher(self) -> bool:
        """Whether higher is better."""
        return self.better == HIGHER

    @property
    def scale(self) -> float:
        """What tables multiply it by."""
        return 100.0 if self.fraction else 1.0

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value that tables may show."""
        if self.fraction:
            return 0.0, 100.0
        return RANGES.get(self.name, (-math.inf, math.inf))

    @property
    def said(self) -> str:
        """Its name in sentences."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def title(self) -> str:
        """The heading of a column: "Accuracy %"; an arrow says that lower is better."""
        return self.heading(f"{self.said[:1].upper()}{self.said[1:]}")

    def heading(self, what: str) -> str:
        """The heading of a column with its values, such as "Best round %"."""
        return what + " %" * self.fraction + " ↓" * (not self.higher)

    @property
    def axis(self) -> str:
        """The label of an axis: "accuracy, %"; what is lower is better says so."""
        named = f"{self.said}, %" if self.fraction else self.said
        return named if self.higher else f"{named} (lower is better)"

    @property
    def column(self) -> str:
        """The heading of a column of numbers for machines: "accuracy_percent"."""
        return f"{self.name}_percent" if self.fraction else self.name

    @property
    def percent(self) -> str:
        """What follows the number in sentences."""
        return " %" if self.fraction else ""

    def shown(self, value: float) -> str:
        """The number in tables; "-" if it is unknown."""
        if math.isnan(value):
            return "-"
        return f"{value:.2f}" if self.fraction or abs(value) >= 100 else f"{value:.4g}"

    def brief(self, value: float) -> str:
        """The number in pictures."""
        return f"{value:.1f}" if self.fraction else f"{value:.3g}"

    def worst_first(self, values: np.ndarray) -> np.ndarray:
        """Sorted along the last axis from the worst; NaN comes last."""
        return np.sort(values, axis=-1) if self.higher else -np.sort(-values, axis=-1)

    def best(self, values: np.ndarray) -> np.ndarray:
        """The best of the last axis."""
        return values.max(axis=-1) if self.higher else values.min(axis=-1)

    def best_so_far(self, values: np.ndarray) -> np.ndarray:
        """The best up to each place of the last axis; NaN is passed over."""
        best = np.fmax if self.higher else np.fmin
        return best.accumulate(values, axis=-1)

    def toward(self, values: Any) -> Any:
        """Numbers of which higher ones are better."""
        return values if self.higher else -values


ACCURACY = Measure("accuracy", pools=True)
