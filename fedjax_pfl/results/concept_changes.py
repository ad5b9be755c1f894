"""Scores around changes of concept: after a change, rounds to recover, backward transfer.

Backward transfer is that of Lopez-Paz and Ranzato (NeurIPS 2017) from one concept to the next: how
much better a client's model is on its previous concept when the next change comes, or the run
ends, than it was before the change. It is negative where models forget.
"""

from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl.results.model_names import PERSONALIZED, PREVIOUS
from fedjax_pfl.results.result_scores import ResultScores
from fedjax_pfl.utils.errors import InputError

RECOVERED = 0.9  # part of the drop that is undone


class Change(NamedTuple):
    """Scores around the clients' k-th change of concept.

    Scores are means over these clients, one for each seed, [S], in the measure's own units.

    Attributes:
      number: k, from 1.
      clients: how many clients change.
      before: in the last scored round of the previous concept.
      after: in the first scored round of the new concept.
      end: in the last scored round of the new concept.
      rounds_to_recover: rounds of the new concept until nine tenths of the drop from `before` to
        `after` are undone; 0 without a drop, infinite if that is never the case.
      backward_transfer: score on the previous concept at the end, minus `before`; of errors the
        other way round, so that negative means forgetting.
    """

    number: int
    clients: int
    before: np.ndarray
    after: np.ndarray
    end: np.ndarray
    rounds_to_recover: np.ndarray
    backward_transfer: np.ndarray

    def means(self) -> dict[str, Any]:
        """Return the means over seeds as plain values; None for what is not finite."""
        values = {name: np.asarray(value, float).mean() for name, value in self._asdict().items()}
        counts = {"number": self.number, "clients": self.clients}
        return {k: float(v) if np.isfinite(v) else None for k, v in values.items()} | counts


def changes(result: ResultScores, setting: int = 0, model: str = PERSONALIZED) -> list[Change]:
    """Return what happens at each change of concept; see `Result.changes`."""
    if "concept" not in result.clients:
        raise InputError("No concept drift in this result: give drift and drift_rounds.")
    concept = result.clients["concept"][0, setting]  # [T, N], the same for all seeds
    scores = result.values(model)[:, setting].astype(np.float64)
    previous = result.values(model, PREVIOUS)[:, setting].astype(np.float64)
    rounds, (total, count) = np.asarray(result.eval_rounds), concept.shape
    begins = [[*(np.flatnonzero(np.diff(concept[:, i])) + 1).tolist(), total] for i in range(count)]
    found = []
    for k in range(max(map(len, begins)) - 1):
        aligned: list[np.ndarray] = []  # [S, T] of each client, by rounds since its change
        ends = []
        for i, begin in enumerate(begins):
            if len(begin) < k + 2:
                continue
            since_when, first, stop = [0, *begin][k : k + 3]
            earlier = np.flatnonzero((rounds > since_when) & (rounds <= first))
            within = np.flatnonzero((rounds > first) & (rounds <= stop))
            known = scores[:, within, i]
            if not len(earlier) or not len(within) or np.isnan(known).all(axis=1).any():
                continue
            before = scores[:, earlier[-1], i]
            if np.isnan(before).any():
                continue
            since = np.full((len(scores), total), np.nan)
            since[:, rounds[within] - first - 1] = known
            aligned.append(since)
            last = within[-1]
            ends.append((before, known[:, 0], scores[:, last, i], previous[:, last, i]))
        if not ends:
            continue
        each = np.array(ends)  # [clients, 4, S]; NaN for those that departed since
        before, after, end = np.nanmean(each[:, :3], axis=0)
        toward = result.measure().toward
        level = after + RECOVERED * (before - after)
        recovered = [
            _first(toward(np.array([one[s] for one in aligned])), toward(level[s]))
            for s in range(len(before))
        ]
        recovered = np.where(toward(after) >= toward(before), 0, recovered)
        transfer = toward(np.nanmean(each[:, 3] - each[:, 0], axis=0))
        found.append(Change(k + 1, len(ends), before, after, end, recovered, transfer))
    return found


def _first(curves: np.ndarray, level: float) -> float:
    """Return the first round, counted from 1, whose mean over clients [n, T] reaches a level."""
    for number, values in enumerate(curves.T, start=1):
        known = values[~np.isnan(values)]
        if len(known) and known.mean() >= level:
            return float(number)
    return np.inf


def summary(result: ResultScores, setting: int) -> dict[str, Any]:
    """Return entries for a result's summary: the changes' means, or nothing without drift."""
    if "concept" not in result.clients or f"{PERSONALIZED}/{PREVIOUS}/loss" not in result.scores:
        return {}
    return {"changes": [one.means() for one in changes(result, setting)]}
