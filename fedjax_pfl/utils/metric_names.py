"""Names, directions and formats of performance measures."""

import math
from typing import Any, NamedTuple

import numpy as np

HIGHER, LOWER, NEITHER = "higher", "lower", "neither"
BETTER = (HIGHER, LOWER)  # of metrics
TITLES = {
    "mse": "MSE", "mae": "MAE", "r2": "R2", "auc": "AUC", "ece": "ECE", "macro_f1": "Macro F1",
    "gflop": "GFLOP", "worst_decile": "worst tenth",
}  # fmt: skip
# Ranges of measures that are not fractions.
RANGES = {
    "mse": (0.0, math.inf), "mae": (0.0, math.inf), "perplexity": (1.0, math.inf),
    "r2": (-math.inf, 1.0),
}  # fmt: skip


class Measure(NamedTuple):
    """A performance measure of a client's model on a split.

    Attributes:
      name: key in scores, such as "accuracy".
      better: "higher", "lower", or "neither" for numbers that only describe a run.
      fraction: whether values are in 0..1; tables then show percentages.
      pools: whether the mean weighted by samples equals the value over all clients' samples.
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
        """Factor of values in tables."""
        return 100.0 if self.fraction else 1.0

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest value in tables."""
        if self.fraction:
            return 0.0, 100.0
        return RANGES.get(self.name, (-math.inf, math.inf))

    @property
    def label(self) -> str:
        """Name in sentences."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def title(self) -> str:
        """Heading of a column, such as "Accuracy %"; an arrow means that lower is better."""
        return self.heading(f"{self.label[:1].upper()}{self.label[1:]}")

    def heading(self, what: str) -> str:
        """Return the heading of a column of values, such as "Best round %"."""
        return what + " %" * self.fraction + " ↓" * (self.better == LOWER)

    @property
    def axis(self) -> str:
        """Label of an axis, such as "accuracy, %"."""
        named = f"{self.label}, %" if self.fraction else self.label
        return f"{named} (lower is better)" if self.better == LOWER else named

    @property
    def column(self) -> str:
        """Name of a machine-readable column, such as "accuracy_percent"."""
        return f"{self.name}_percent" if self.fraction else self.name

    @property
    def percent(self) -> str:
        """Unit after numbers in sentences."""
        return " %" if self.fraction else ""

    def shown(self, value: float) -> str:
        """Format a number for tables; "-" for NaN."""
        if math.isnan(value):
            return "-"
        # z: no sign of what rounds to zero
        return f"{value:z.2f}" if self.fraction or abs(value) >= 100 else f"{value:z.4g}"

    def brief(self, value: float) -> str:
        """Format a number for figures."""
        return f"{value:z.1f}" if self.fraction else f"{value:z.3g}"

    def worst_first(self, values: np.ndarray) -> np.ndarray:
        """Sort along the last axis from the worst value; NaN comes last."""
        return np.sort(values, axis=-1) if self.higher else -np.sort(-values, axis=-1)

    def worst_tenth(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over the worst tenth of the values along the last axis.

        NaN does not count, and the tenth is rounded up; without any value the mean is NaN.
        """
        known = (~np.isnan(values)).sum(axis=-1, keepdims=True)
        tenth = np.maximum(-(-known // 10), 1)
        chosen = np.arange(values.shape[-1]) < tenth
        return np.where(chosen, self.worst_first(values), 0).sum(axis=-1) / tenth[..., 0]

    def best(self, values: np.ndarray) -> np.ndarray:
        """Return the best value along the last axis, ignoring NaN; NaN if there is none."""
        return (np.fmax if self.higher else np.fmin).reduce(values, axis=-1)

    def best_so_far(self, values: np.ndarray) -> np.ndarray:
        """Return the running best value along the last axis, ignoring NaN."""
        return (np.fmax if self.higher else np.fmin).accumulate(values, axis=-1)

    def toward(self, values: Any) -> Any:
        """Return values negated if lower is better, so that higher is better."""
        return values if self.higher else 0 - values  # 0, not -0, for 0


ACCURACY = Measure("accuracy", pools=True)
