"""Tests of algorithms over data sets or settings.

After Demsar, Statistical comparisons of classifiers over multiple data sets, JMLR 2006,
https://jmlr.org/papers/v7/demsar06a.html.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.results.table import Column, Table
from fedjax_pfl.utils.errors import InputError, require, require_name
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FEWEST = 5  # blocks that a comparison needs


class Friedman(NamedTuple):
    """Friedman's test that all rows are alike, and the form of Iman and Davenport.

    Attributes:
      statistic, p_value: chi-squared with k - 1 degrees of freedom, corrected for ties.
      f_statistic, f_p_value: F with k - 1 and (k - 1)(n - 1) degrees of freedom.
    """

    statistic: float
    p_value: float
    f_statistic: float
    f_p_value: float


@dataclass(frozen=True)
class Ranking:
    """Rows, such as algorithms, that are ranked within blocks: data sets or settings.

    Clients and seeds are not blocks, because those of one data set are not independent.

    Attributes:
      names: names of the k rows.
      blocks: names of the n blocks.
      scores: [n, k], one number for each block and row, such as the mean over clients and seeds.
      measure: what the scores measure.

    Raises:
      InputError: fewer than five blocks or two rows, or a score that is not finite.
    """

    names: Sequence[str]
    blocks: Sequence[str]
    scores: np.ndarray
    measure: Measure = ACCURACY

    def __post_init__(self):
        shape = len(self.blocks), len(self.names)
        require(self.scores.shape == shape, "shape of scores", self.scores.shape, f"{shape}")
        if len(self.blocks) < FEWEST:
            raise InputError(
                f"Tests need at least {FEWEST} data sets or settings that all rows have, got "
                f"{len(self.blocks)}: clients and seeds of one data set are not independent."
            )
        if len(self.names) < 2:
            raise InputError("Tests compare rows: give at least two.")
        require(bool(np.isfinite(self.scores).all()), "scores", self.scores, "finite")

    @cached_property
    def ranks(self) -> np.ndarray:
        """[n, k]: 1 for the best of a block; ties have their mean rank."""
        from scipy import stats  # slow import

        scores = self._rounded(self.scores.T).T
        return np.asarray(stats.rankdata(-self.measure.toward(scores), axis=1))

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        """Round [..., n] to six digits of a block's largest score: means of float32 scores tie."""
        largest = np.maximum(np.abs(self.scores).max(axis=1), 1e-9)
        unit = 10.0 ** (np.ceil(np.log10(largest)) - 6)
        least = unit.min()  # of all blocks, so that equal differences of two blocks tie
        return np.round(np.round(values / unit) * unit / least) * least

    @property
    def mean_ranks(self) -> np.ndarray:
        """[k]: over blocks."""
        return self.ranks.mean(axis=0)

    def friedman(self) -> Friedman:
        """Return Friedman's test, whose statistic is 0 where all rows tie in every block."""
        from scipy import stats  # slow import

        n, k = self.ranks.shape
        between = n * ((self.mean_ranks - (k + 1) / 2) ** 2).sum()
        within = ((self.ranks - (k + 1) / 2) ** 2).sum() / (n * (k - 1))
        chi = float(between / within) if within > 0 else 0.0
        rest = n * (k - 1) - chi
        f = float((n - 1) * chi / rest) if rest > 1e-9 else np.inf  # all blocks agree
        p, f_p = stats.chi2.sf(chi, k - 1), stats.f.sf(f, k - 1, (k - 1) * (n - 1))
        return Friedman(chi, float(p), f, float(f_p))

    def critical_difference(self, alpha: float = 0.05) -> float:
        """Return Nemenyi's critical difference of mean ranks at the level `alpha`."""
        from scipy import stats  # slow import

        n, k = self.ranks.shape
        q = stats.studentized_range.ppf(1 - alpha, k, np.inf) / np.sqrt(2)
        return float(q * np.sqrt(k * (k + 1) / (6 * n)))

    def groups(self, alpha: float = 0.05) -> list[list[str]]:
        """Return the largest groups of rows that do not differ by Nemenyi's test, best first."""
        order = sorted(range(len(self.names)), key=self.mean_ranks.__getitem__)
        ranks, reach = self.mean_ranks[order], self.critical_difference(alpha)
        ends = np.searchsorted(ranks, ranks + reach, side="right")
        firsts = [k for k, end in enumerate(ends) if end - k > 1 and (not k or end > ends[k - 1])]
        return [[self.names[i] for i in order[k : ends[k]]] for k in firsts]

    def wilcoxon(self, baseline: str) -> dict[str, tuple[float, float]]:
        """Return (p-value, Holm's adjusted p-value) of every other row against a baseline.

        The test is two-sided and exact, also with ties: it is conditional on the ranks of the
        absolute differences. Zero differences are ranked, and count for neither side.

        Raises:
          InputError: no such row.
        """
        require_name("baseline", baseline, self.names)
        base = self.scores[:, list(self.names).index(baseline)]
        others = [name for name in self.names if name != baseline]
        columns = [self.scores[:, list(self.names).index(name)] for name in others]
        values = [signed_ranks_p(self._rounded(column - base)) for column in columns]
        return {
            name: (p, adjusted)
            for name, p, adjusted in zip(others, values, holm(values), strict=True)
        }

    def table(self, baseline: str | None = None) -> Table:
        """Return the rows by mean rank; with a baseline their Wilcoxon tests. Notes have the rest.

        Raises:
          InputError: no such baseline.
        """
        tested = {} if baseline is None else self.wilcoxon(baseline)
        order = sorted(range(len(self.names)), key=self.mean_ranks.__getitem__)
        rows = [
            {"row": self.names[i], "rank": float(self.mean_ranks[i])}
            | dict(zip(("p", "holm"), tested.get(self.names[i], ()), strict=False))
            for i in order
        ]
        columns = [
            Column("row", "Row"),
            Column("rank", "Mean rank", lambda row: f"{row['rank']:.2f}", "mean_rank"),
            Column("p", f"p vs {baseline}", name="wilcoxon_p"),
            Column("holm", "p, Holm", name="wilcoxon_p_holm"),
        ]
        return Table(columns, rows, self._notes(baseline))

    def _notes(self, baseline: str | None) -> list[str]:
        n, k = self.ranks.shape
        found, reach = self.friedman(), self.critical_difference()
        apart = "; ".join(", ".join(group) for group in self.groups()) or "none"
        notes = [
            f"Mean ranks over {n} blocks ({', '.join(self.blocks)}), each counted once; 1 is best.",
            f"Friedman: chi-squared({k - 1}) = {found.statistic:.3g}, p = {found.p_value:.2g}; "
            f"Iman and Davenport: F({k - 1}, {(k - 1) * (n - 1)}) = {found.f_statistic:.3g}, "
            f"p = {found.f_p_value:.2g}.",
        ]
        if baseline is not None:
            notes.append(
                f"p: exact two-sided Wilcoxon signed-rank test against {baseline}, by itself and "
                f"with Holm's correction for {k - 1}; with {n} blocks it is never below "
                f"{0.5 ** (n - 1):.2g}."
            )
        return [
            *notes,
            f"Nemenyi, 5 %: mean ranks differ if they are more than {reach:.2f} apart. Groups "
            f"without a difference: {apart}. They depend on which rows are compared.",
        ]

    def plot(self, alpha: float = 0.05) -> "Figure":
        """Plot mean ranks with the groups that do not differ by Nemenyi's test."""
        from fedjax_pfl.results.comparison_plots import rank_diagram  # matplotlib, slow

        return rank_diagram(self, alpha)


def signed_ranks_p(differences: np.ndarray) -> float:
    """Return the exact two-sided p-value of Wilcoxon's signed-rank test."""
    from scipy import stats  # slow import

    doubled = np.rint(2 * stats.rankdata(np.abs(differences))).astype(int)  # half ranks for ties
    known, positive = differences != 0, differences > 0
    chances = np.ones(1)  # of each sum of positive ranks under random signs
    for rank in doubled[known]:
        both = np.zeros(len(chances) + rank)
        both[: len(chances)] += chances / 2
        both[rank:] += chances / 2
        chances = both
    plus, total = doubled[positive].sum(), doubled[known].sum()
    return float(min(1.0, 2 * chances[: min(plus, total - plus) + 1].sum()))


def holm(values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values."""
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(order), 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(factors * np.asarray(values)[order]), 1.0)
    result = np.empty(len(order))
    result[order] = adjusted
    return result.tolist()


def ranking(results: Mapping[str, Mapping[str, ResultScores]], model: str, split: str) -> Ranking:
    """Return the ranking of `Result.compare`."""
    names = list(next(iter(results.values()), ()))
    scores, measures = [], []
    for block, rows in results.items():
        if set(rows) != set(names):
            raise InputError(
                f"Each block needs the results {names}, and {block!r} has {list(rows)}."
            )
        for one in rows.values():
            one.require_scores()
            require(one.num_settings == 1, "number of settings", one.num_settings,
                    "1: take result.select(NAME=VALUE)")  # fmt: skip
            rows[names[0]].require_same_samples(one)
        values = [rows[name].values(model, split)[:, 0, -1].astype(float) for name in names]
        common = np.logical_and.reduce([~np.isnan(one).any(axis=0) for one in values])
        if not common.any():
            raise InputError(f"No client is scored in all results of {block!r}.")
        measures += [one.measure() for one in rows.values()]
        scores.append([measures[-1].scale * one[:, common].mean() for one in values])
    if len(set(measures)) > 1:
        raise InputError("The results of a comparison need one measure.")
    measure = measures[0] if measures else ACCURACY
    blocks = list(map(str, results))  # keys may be numbers
    return Ranking(
        list(map(str, names)), blocks, np.reshape(scores, (len(scores), len(names))), measure
    )
