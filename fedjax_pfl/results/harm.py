"""Clients that gain and clients that are harmed against a baseline, by client and seed."""

import contextlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.results.model_names import PERSONALIZED
from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.results.table import Column
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

BASELINES = ("local", "fedavg")  # rows with which tables compare
WIN, HARMED, MEAN_HARM, TENTH = "win_rate", "harmed", "mean_harm", "tenth_percentile"
TITLES = {
    WIN: "Better than {}", HARMED: "Harmed vs {}", MEAN_HARM: "Mean harm vs {}",
    TENTH: "Tenth percentile of gain over {}",
}  # fmt: skip
ENDS = ("", " low", " high")  # ends of columns' names: a number and its interval
BETTER = (
    "Better than a baseline: share of pairs, a client in a seed, with a better {}; ties count half."
)
WORSE = (
    "Harmed: share of pairs that are worse by more than one binomial standard error of the "
    "client's test samples."
)
REST = (
    "Mean harm: mean drop over pairs, 0 for those that gain. Tenth percentile: of pairs' gains. "
    "In brackets: 95 % bootstrap interval over clients."
)
DRAWS, SEED = 1000, 0
MOST = 1_000_000  # numbers that are resampled at once


class Estimate(NamedTuple):
    """A number with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def _statistics(gains: np.ndarray, harmed: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of pairs along the last axis, without those of unknown gain."""
    known = ~np.isnan(gains)
    count, gained = known.sum(axis=-1), np.where(known, gains, 0)
    return {
        WIN: ((gains > 0) + 0.5 * (gains == 0)).sum(axis=-1) / count,
        HARMED: np.where(known, harmed, 0).sum(axis=-1) / count,
        MEAN_HARM: np.maximum(-gained, 0).sum(axis=-1) / count,
        TENTH: np.nanquantile(gains, 0.1, axis=-1),
    }


@dataclass(frozen=True)
class Gains:
    """Each client's gain over a baseline in each seed.

    Attributes:
      values: [S, N], the measure minus the baseline's, positive where it is better; NaN for clients
        that one of the two does not score.
      errors: [S, N], one binomial standard error of an accuracy on the client's test samples, at
        the mean of both accuracies; NaN for other measures and splits.
      seeds: the S seeds of both results.
      clients: permanent ids of the N clients.
      measure: the compared measure.
    """

    values: np.ndarray
    errors: np.ndarray
    seeds: tuple[int, ...]
    clients: np.ndarray
    measure: Measure = ACCURACY

    @property
    def harmed(self) -> np.ndarray:
        """[S, N], 1 where a client is worse by more than a standard error, NaN if unknown."""
        return np.where(np.isnan(self.values + self.errors), np.nan, -self.values > self.errors)

    def summary(self) -> dict[str, Estimate]:
        """Return "win_rate", "harmed", "mean_harm" and "tenth_percentile" over all pairs.

        Win rate: share of the pairs (client, seed) that are better than the baseline's; ties count
        half. Harmed: share that is worse by more than `errors`, NaN without these. Mean harm: the
        mean drop, 0 for pairs that gain. Tenth percentile: of the gains. The intervals are those of
        1,000 bootstrap samples of the clients, each with its pairs of all seeds.
        """
        known = ~np.isnan(self.values).all(axis=0)
        every = self.values[:, known], self.harmed[:, known]
        point = _statistics(*(one.ravel() for one in every))
        rng, (seeds, clients) = np.random.default_rng(SEED), every[0].shape
        draws: list[dict[str, np.ndarray]] = []
        for first in range(0, DRAWS, step := max(1, MOST // (seeds * clients))):
            at = rng.integers(clients, size=(min(step, DRAWS - first), clients))
            drawn = (np.moveaxis(one[:, at], 0, 1).reshape(len(at), -1) for one in every)
            draws.append(_statistics(*drawn))
        result = {}
        for name, value in point.items():
            low, high = np.quantile(np.concatenate([one[name] for one in draws]), [0.025, 0.975])
            result[name] = Estimate(float(value), float(low), float(high))
        return result


def gains(
    result: ResultScores,
    baseline: ResultScores,
    model: str = PERSONALIZED,
    split: str = "test",
    metric: str | None = None,
) -> Gains:
    """Return the gains of `Result.gains`."""
    for one in (result, baseline):
        one.require_scores()
        require(one.num_settings == 1, "number of settings", one.num_settings,
                "1, to be compared: take result.select(NAME=VALUE)")  # fmt: skip
    measure, against = result.measure(metric), baseline.measure(metric)
    result.require_same_samples(baseline)
    if measure != against:
        raise InputError(f"Gains need one measure, got {measure.label} and {against.label}.")
    seeds = tuple(seed for seed in result.seeds if seed in baseline.seeds)
    if not seeds:
        raise InputError("Gains are by seed, and these results have no seed in common.")
    mine, other = (_last(one, seeds, model, split, metric) for one in (result, baseline))
    values, errors = measure.toward(mine - other), np.full(mine.shape, np.nan)
    if measure == ACCURACY and split == "test":
        sizes = np.maximum(result.test_sizes, 1)
        mine, other = np.rint(mine * sizes), np.rint(other * sizes)  # exact, for ties
        values, mean = (mine - other) / sizes, (mine + other) / (2 * sizes)
        errors = np.sqrt(mean * (1 - mean) / sizes)
    if np.isnan(values).all(axis=-1).any():
        raise InputError("Gains need a client that both results score.")
    return Gains(values, errors, seeds, np.asarray(result.client_ids), measure)


def _last(result: ResultScores, seeds: tuple[int, ...], *which: Any) -> np.ndarray:
    at = [result.seeds.index(seed) for seed in seeds]
    return result.values(*which)[at, 0, -1].astype(np.float64)


def gains_over_baselines(
    results: Mapping[str, Any], make: Callable[..., Gains]
) -> dict[str, dict[str, Gains]]:
    """Return the gains of rows over each baseline among them, {baseline: {name: gains}}.

    The baselines are the first row of `local` and the first row of `fedavg`. Rows that cannot be
    compared with one are omitted.

    Args:
      results: rows by name, with an attribute `algorithm`.
      make: (row, baseline) -> `Gains`.
    """
    found: dict[str, dict[str, Gains]] = {}
    for base in BASELINES:
        rows = [name for name, one in results.items() if one.algorithm == base]
        for name in results if rows else ():
            if name != rows[0]:
                with contextlib.suppress(InputError):
                    found.setdefault(rows[0], {})[name] = make(results[name], results[rows[0]])
    return found


def summary_values(baseline: str, gains: Gains) -> dict[str, float]:
    """Return the statistics of one row of a table, by the keys of `columns`."""
    return {
        f"{name} {baseline}{end}": value
        for name, one in gains.summary().items()
        if not math.isnan(one.value)
        for end, value in zip(ENDS, one, strict=True)
    }


def columns(baseline: str, measure: Measure, shown: Collection[str], brief: bool) -> list[Column]:
    """Return the columns of the statistics over a baseline; intervals have their own in CSV files.

    Args:
      shown: names of the statistics that readers see.
      brief: without intervals.
    """
    result = []
    for name, title in TITLES.items():
        one = ACCURACY if name in (WIN, HARMED) else measure
        keys = [f"{name} {baseline}{end}" for end in ENDS]
        text = partial(_cell, keys=keys[:1] if brief else keys, measure=one)
        heading = title.format(baseline) + " %" * one.fraction
        for key, end in zip(keys, ENDS, strict=True):
            machine = f"{name}_over_{baseline}{end.replace(' ', '_')}"
            result.append(Column(key, heading, text, machine, name in shown and not end))
    return result


def _cell(row: Mapping[str, Any], keys: Collection[str], measure: Measure) -> str:
    """Format a statistic, with its interval if there are three keys."""
    value, *ends = (measure.shown(measure.scale * row[key]) for key in keys)
    return f"{value} ({' to '.join(ends)})" if ends else value
