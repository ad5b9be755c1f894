"""How a measured table agrees with the paper's: order of the rows, distances, explanations."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .entries import Entry, Section, ranked
from .paper_tables import PaperTable

SCALE, DATA, UNEXPLAINED = "scale", "other data", "unexplained"
DIVERGED = "diverged"


@dataclass(frozen=True)
class Verdict:
    """Of a column, or of a whole table.

    Attributes:
      tau: Kendall's tau-b between the paper's order of the rows and ours, the mean over a table's
        columns; None with fewer than two rows, or where all are tied.
      rows: how many rows it compares.
      apart, pairs: pairs of those rows whose 95 % intervals over our seeds do not overlap, and all
        pairs. Of the others our runs don't tell the order.
      near, compared: cells at most `entries.NEAR` off, and all with a difference.
      far: rows further off, with the names of what explains them.
    """

    tau: float | None
    rows: int
    apart: int = 0
    pairs: int = 0
    near: int = 0
    compared: int = 0
    far: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def unexplained(self) -> int:
        return sum(UNEXPLAINED in why for _, why in self.far)

    def numbers(self) -> dict[str, float | None]:
        """The same by the names that files have."""
        return {"kendall_tau": self.tau, "rows": self.rows, "apart": self.apart,
                "pairs": self.pairs, "within": self.near, "compared": self.compared,
                "unexplained": self.unexplained}  # fmt: skip


def kendall(paper: Sequence[float], ours: Sequence[float]) -> float | None:
    """Tau-b of two lists of numbers; None where it isn't defined."""
    from scipy import stats  # slow import

    if len(paper) < 2:
        return None
    both = [[ranked(number) for number in numbers] for numbers in (paper, ours)]
    tau = float(np.asarray(stats.kendalltau(*both))[0])
    return None if np.isnan(tau) else tau


def of_column(table: PaperTable, scale: str, section: Section, entries: Sequence[Entry]) -> Verdict:
    """The verdict on one column.

    Rows of single clients have no place in the order: which classes a client has is drawn anew.
    """
    both = [e for e in entries if e.paper is not None and e.ours is not None]
    ranked = [e for e in both if e.line.client is None]
    tau = kendall([e.paper or 0.0 for e in ranked], [e.ours or 0.0 for e in ranked])
    alone = 0.0 if section.column.measure.blank else None  # of one seed: a count has no spread
    halves = [alone if e.half is None else e.half for e in ranked]
    apart = told_apart([(e.ours or 0.0, half) for e, half in zip(ranked, halves, strict=True)])
    order = (tau, len(ranked), *apart)
    if section.other_data:
        return Verdict(*order)
    far = [(e.line.name, why(table, scale, section, e)) for e in both if not e.near]
    return Verdict(*order, len(both) - len(far), len(both), tuple(far))


def told_apart(numbers: Sequence[tuple[float, float | None]]) -> tuple[int, int]:
    """(pairs whose intervals do not overlap, all pairs) of means with half of their interval.

    None is the interval of a single seed, which overlaps all others.
    """
    halves = [(mean, np.inf if half is None else half) for mean, half in numbers]
    pairs = list(itertools.combinations(halves, 2))
    return sum(abs(a - b) > wide + width for (a, wide), (b, width) in pairs), len(pairs)


def why(table: PaperTable, scale: str, section: Section, entry: Entry) -> tuple[str, ...]:
    """Names of what explains a cell that is far off."""
    reduced = scale != "full" and section.column.measure.scaled
    found = [DIVERGED] if any("non-finite" in remark for remark in entry.remarks) else []
    found += [SCALE] if reduced else []
    where = "below" if (entry.difference or 0.0) < 0 else "above"
    found += table.explanations(entry.line, section.column, where)
    return tuple(found) or (UNEXPLAINED,)


def of_table(columns: Sequence[Verdict]) -> Verdict:
    """That of all columns: the mean of their taus, and the sums of their cells."""
    taus = [one.tau for one in columns if one.tau is not None]
    return Verdict(
        float(np.mean(taus)) if taus else None,
        sum(one.rows for one in columns if one.tau is not None),
        sum(one.apart for one in columns if one.tau is not None),
        sum(one.pairs for one in columns if one.tau is not None),
        sum(one.near for one in columns),
        sum(one.compared for one in columns),
        tuple(cell for one in columns for cell in one.far),
    )
