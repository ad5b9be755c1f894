"""Headline numbers of a run, including those of other libraries."""

from typing import NamedTuple

import numpy as np

from fedjax_pfl.utils.errors import InputError, require_name
from fedjax_pfl.utils.metric_names import ACCURACY, Measure


class Headline(NamedTuple):
    """A rule that reduces the accuracies of clients and rounds to one number.

    Attributes:
      score: of the rounds, a name in `SCORES`.
      average: over "clients", each counting alike, or over "samples".
      meaning: in a few words.
    """

    score: str
    average: str
    meaning: str


SCORES = {
    "final": "after the last round",
    "best": "best round",
    "last_tenth": "mean of the last tenth of rounds",
}
AVERAGES = ("clients", "samples")
DEFAULT = "final"
HEADLINES = {
    DEFAULT: Headline("final", "clients", "mean over clients after the last round"),
    "best": Headline("best", "clients", "the best round's mean over clients"),
    "last_tenth": Headline(
        "last_tenth", "clients", "mean over clients in the last tenth of rounds"
    ),
    "pfllib": Headline("best", "samples", "the best round's accuracy over all test samples pooled"),
    "flbench": Headline(
        "best", "samples", "the best round's accuracy over all test samples pooled"
    ),
    "flower": Headline("final", "samples", "accuracy over all test samples after the last round"),
}
CHOSEN_ON_TEST = "the round is chosen on test data"


def headline_of(name: str) -> Headline:
    """Return the headline of a name.

    Raises:
      InputError: unknown name.
    """
    require_name("headline", name, HEADLINES)
    return HEADLINES[name]


def check_pools(name: str, measure: Measure) -> None:
    """Raise `InputError` for a pooled headline of a measure that cannot be pooled."""
    if headline_of(name).average == "samples" and not measure.pools:
        others = [repr(one) for one, how in HEADLINES.items() if how.average != "samples"]
        raise InputError(
            f"Headline {name!r} pools all test samples, and {measure.label} is not a mean over "
            f"samples: use {' or '.join(others)}."
        )


def one_number(curves: np.ndarray, score: str, measure: Measure = ACCURACY) -> np.ndarray:
    """Reduce [..., E] to [...] by the rule `score`; NaN where a run has no score.

    Rounds that no run scored are left out unless they are the last: an adaptation may come only
    after the last round, but no earlier round stands in for it.

    Raises:
      InputError: an unknown score.
    """
    require_name("score", score, SCORES)
    axes = tuple(range(curves.ndim - 1))
    if score == "best":
        return measure.best(curves)
    if score == "final":
        return curves[..., -1]
    scored = np.logical_not(np.isnan(curves).all(axis=axes))
    curves = curves[..., scored] if scored[-1] else curves
    return curves[..., -max(1, curves.shape[-1] // 10) :].mean(axis=-1)
