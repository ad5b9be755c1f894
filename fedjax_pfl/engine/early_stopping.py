"""Early stopping when the validation metric no longer improves."""

from typing import Any

import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.errors import InputError, require_whole

WATCHED = "personalized/validation"  # the model and split whose main metric counts


def checked_patience(
    patience: Any, algorithm: Algorithm, federation: Federation, adapt: Adaptation | None
) -> int | None:
    """Check `patience`, a number of rounds without a better validation metric, or None.

    Raises:
      InputError: it is not a whole number of at least 1, no client has validation samples, these
        are private, clients arrive or leave, or models are scored after the last round only, which
        is not known in advance.
    """
    if patience is None:
        return None
    patience = require_whole("patience", patience, 1)
    if not federation.data.validation.total:
        raise InputError(
            f"patience watches the validation {federation.measures[0].label}, and no client has "
            "validation samples: set training samples aside with --validation_fraction=0.2, or in "
            "Python with partition.split_validation(0.2, seed=0)."
        )
    if federation.privacy is not None and not federation.privacy.public_validation:
        raise InputError(
            "patience uses validation samples without noise: declare them public with "
            "dp_public_validation, or leave it out."
        )
    if federation.participation.window is not None:
        raise InputError(
            "patience compares means over the same clients, which arrivals or departures change: "
            "leave one of them out."
        )
    for how in filter(None, (algorithm.adaptation(), adapt)):
        if how.when == "last":
            raise InputError(
                f"{algorithm.name} is scored after {how}, only after the last round, which is not "
                "known beforehand with patience: leave one of them out."
            )
    return patience


def earliest_stop(
    rounds: np.ndarray, values: np.ndarray, patience: int, every: int, last: int
) -> int:
    """Return the first scored round after which `patience` ends the simulation.

    `rounds` may extend past the result, if they were simulated with more patience.

    Args:
      rounds: [E], numbers of the rounds scored so far.
      values: [R, E], of each run, higher ones better; NaN where there is none.
      patience: rounds without a new best, of every run.
      every, last: rounds are scored after each `every`-th, and after the last.
    """
    known = np.where(np.isfinite(values), values, -np.inf)
    best = np.maximum.accumulate(known, axis=1)
    before = np.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=-np.inf)[:, : len(rounds)]
    bests = np.maximum.accumulate(np.where(known > before, rounds, 0), axis=1).max(axis=0)
    ends = -(-(np.append(0, bests) + patience) // every) * every
    over = ends[1:][ends[1:] <= rounds]
    return min(last, int(over[0] if len(over) else ends[-1]))
