"""Quantities in columns of papers' tables: accuracy, or a cost of the run.

A cost is one number of a run for each seed, of the last round; a column's `times` multiplies it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..figures.runs import Run

MIB = 2**20
ACCURACY = "accuracy"


class Quantity(NamedTuple):
    """A quantity that a column can have.

    Attributes:
      unit: of its numbers.
      meaning: the meaning of the number, for a sentence.
      more: whether more is better, for places.
      scaled: whether another scale than "full" changes it.
      blank: whether it depends only on the samples' number and shape, so that blank ones serve.
      anywhere: whether it is the same on any data set.
      of: one number for each seed from a finished run; None for accuracy.
    """

    unit: str
    meaning: str
    more: bool = False
    scaled: bool = True
    blank: bool = False
    anywhere: bool = False
    of: Callable[[Run], np.ndarray] | None = None


def _per_participant(run: Run, sums: np.ndarray) -> np.ndarray:
    """Reduce [S, T, N] to [S], the last round's mean over its participants."""
    took_part = run.records["participated"][:, -1].sum(axis=1)
    return sums[:, -1].sum(axis=1) / np.maximum(took_part, 1)


def _traffic(run: Run) -> np.ndarray:
    return _per_participant(run, run.traffic("up") + run.traffic("down")) / MIB


def _models(run: Run) -> np.ndarray:
    return _traffic(run) * MIB / (4 * run.result.num_parameters)


def _gflop(run: Run) -> np.ndarray:
    flops = run.flops()
    return np.full(len(run.seeds), np.nan) if flops is None else _per_participant(run, flops) / 1e9


def _seconds(run: Run) -> np.ndarray:
    return np.array([run.result.seconds_per_round], float)


SENT = "sent and received by a client that takes part in a round"
QUANTITIES = {
    ACCURACY: Quantity("%", "accuracy in percent", more=True),
    "traffic": Quantity("MiB", f"MiB (2^20 bytes) {SENT}", scaled=False, blank=True, of=_traffic),
    "models": Quantity(
        "models", f"models {SENT}", scaled=False, blank=True, anywhere=True, of=_models
    ),
    "gflop": Quantity(
        "GFLOP", "GFLOP of local training of a client that takes part in a round", blank=True,
        of=_gflop,
    ),
    "seconds": Quantity("s", "seconds of a round of all clients on one machine", of=_seconds),
}  # fmt: skip
