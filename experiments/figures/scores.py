"""Averages of finished runs' accuracies, and the flags that choose among them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import absl.flags
import numpy as np

from fedjax_pfl.results.accuracy_conventions import (
    AVERAGES,
    DEFAULT,
    HEADLINES,
    SCORES,
    headline_of,
    one_number,
)
from fedjax_pfl.results.notes import named
from fedjax_pfl.utils.errors import InputError, require_name

from ..cli import flag_roles
from ..cli.flag_groups import Group
from ..cli.parsing import value_of
from .runs import Run, same_data

__all__ = [
    "AVERAGES", "OVER", "SCORES", "Choice", "choice_of", "chosen_clients", "curve", "define_flags",
    "describe_clients", "one_number",
]  # fmt: skip

OVER = ("all", "next_participants")


def chosen_clients(
    runs: Sequence[Run], words: str, models: str | Sequence[str], split: str
) -> list[np.ndarray]:
    """Return the rows of the clients to average, for each run.

    Args:
      models: a name, or several; clients count that are scored with all of them.
      words: numbers such as "0,3"; "" for those that all runs on the same data score, so that an
        algorithm for one client is compared with the others' models of that client.

    Raises:
      InputError: a client that a run lacks or does not score, or no client that all score.
    """
    models = [models] if isinstance(models, str) else models
    scored = [
        np.logical_and.reduce([_scored(run, model, split) for model in models]) for run in runs
    ]
    if words:
        return [_named_clients(run, own, words) for run, own in zip(runs, scored, strict=True)]
    rows = []
    for run in runs:
        # No run scores clients without test samples; an algorithm for one client scores only that
        # one.
        alike = [one for other, one in zip(runs, scored, strict=True) if same_data(run, other)]
        rows.append(np.flatnonzero(np.logical_and.reduce(alike)))
        if not len(rows[-1]):
            raise InputError(
                "No client is scored in all of these runs: leave some out, as with --algorithms."
            )
    return rows


def _scored(run: Run, model: str, split: str) -> np.ndarray:
    """Return whether each client is scored in the last round, [N], or else in any round.

    All are if the run lacks the model.
    """
    if model not in run.scored(split):
        return np.ones(run.num_clients, bool)
    known = ~np.isnan(run.values(model, split))  # [S, E, N]
    last = known[:, -1].any(axis=0)
    return np.asarray(last if last.any() else known.any(axis=(0, 1)))


def _named_clients(run: Run, scored: np.ndarray, words: str) -> np.ndarray:
    numbers = [int(w) if w.strip().isdecimal() else -1 for w in words.split(",")]
    for word, number in zip(words.split(","), numbers, strict=True):
        if not 0 <= number < run.num_clients:
            raise InputError(
                f"clients must be numbers in 0..{run.num_clients - 1}, got {word.strip()!r}"
                f" ({run.folder})."
            )
        if not scored[number]:
            raise InputError(
                f"client {number} is not scored in {run.folder}, which scores "
                f"{named(np.flatnonzero(scored).tolist())}."
            )
    return np.unique(numbers)


def describe_clients(
    runs: Sequence[Run], rows: Sequence[np.ndarray], average: str = "clients", across: bool = False
) -> str:
    """Describe the averaged clients for a title; runs `across` data sets differ in clients."""
    same = all(np.array_equal(one, rows[0]) for one in rows)
    same = same and len({run.num_clients for run in runs}) == 1
    same = same and (across or all(same_data(runs[0], run) for run in runs))
    if not same:
        return f"mean over {average}, not the same ones in all runs"
    if len(rows[0]) == 1:
        return f"client {rows[0][0]}"
    if len(rows[0]) == runs[0].num_clients:
        return f"mean over {average}"
    some = f"{len(rows[0])} of {runs[0].num_clients} clients"
    return f"mean over {some}" if average == "clients" else f"mean over {average} of {some}"


def curve(
    run: Run,
    rows: np.ndarray,
    model: str,
    split: str,
    average: str = "clients",
    over: str = "all",
) -> np.ndarray:
    """Return the run's measure at evaluated rounds, [S, E], in percent for accuracies, or NaN.

    Args:
      average: over "clients" each counts alike; over "samples" as many times as it has test
        samples, which is what a server scores on the union of all test sets.
      over: "all" of these clients; or "next_participants", those of them that take part in the next
        round, as codes do that score the selected clients when a round begins. NaN after the last.

    Raises:
      InputError: an unknown `average` or `over`, or a model that isn't scored.
    """
    require_name("average", average, AVERAGES)
    require_name("over", over, OVER)
    if average == "samples" and not run.measure.pools:
        raise InputError(
            f"average must be 'clients' here: {run.measure.label} is not a mean over samples."
        )
    if average == "samples" and split != "test":
        raise InputError(
            f"average must be 'clients' for {split} samples: a result holds the clients' numbers "
            "of test samples only."
        )
    values = run.values(model, split)[:, :, rows].astype(float)
    known = ~np.isnan(values)  # an infinite error counts
    if over == "next_participants":
        took_part = run.records["participated"].astype(bool)  # [S, T, N]
        coming = np.concatenate([took_part[:, 1:], np.zeros_like(took_part[:, :1])], axis=1)
        known &= coming[:, run.result.eval_rounds - 1][:, :, rows]
    weights = known * (run.result.test_sizes[rows] if average == "samples" else 1.0)
    total = weights.sum(axis=-1)
    mean = (np.where(known, values, 0) * weights).sum(axis=-1) / np.where(total > 0, total, 1)
    return np.where(total > 0, run.measure.scale * mean, np.nan)


@dataclass(frozen=True)
class Choice:
    """Selection of scores.

    Attributes:
      score: of the rounds, a name in `SCORES`.
      model, split, average: as of `curve`.
      clients: their numbers; by default those that all runs on the same data score.
      different_data: whether a table (a column of a pivot) may have runs on different data sets or
        partitions.
    """

    score: str = "final"
    model: str = "personalized"
    split: str = "test"
    average: str = "clients"
    clients: str = ""
    different_data: bool = False

    @property
    def moved_by(self) -> set[str]:
        """Names of the flags of measurements on which the scores depend."""
        copies = self.model in ("adapted", "trained")
        flags = {one for one in flag_roles.MEASUREMENTS if copies and one.startswith("adapt_")}
        return flags if self.score == "final" else flags | {"eval_every"}


def define_flags(group: Group) -> None:
    """Define the flags of a `Choice`, and --headline."""
    group.text("score", "final", f"rounds that count: {', '.join(SCORES)}")
    group.text("model", "personalized", "model whose scores are taken, such as global")
    group.text("split", "test", "samples of the scores: test or validation")
    meaning = f"--score and --average by a name: {', '.join(HEADLINES)}"
    group.text("headline", DEFAULT, meaning)
    group.text("average", "clients", f"mean over {' or '.join(AVERAGES)}")
    meaning = "ids of the clients to average over (default: those that all runs score)"
    group.text("clients", "", meaning)
    group.switch("different_data", False, "allow rows on other data or partitions")


def choice_of(values: absl.flags.FlagValues) -> Choice:
    """Return the choice of the flags.

    Raises:
      InputError: --headline beside a flag that it stands for.
    """
    options = {field.name: value_of(values, field.name) for field in fields(Choice)}
    if values["headline"].present:
        how = headline_of(value_of(values, "headline"))
        twice = [name for name in ("score", "average") if values[name].present]
        if twice:
            raise InputError(f"--headline says what --{twice[0]} does: leave one of them out.")
        options |= {"score": how.score, "average": how.average}
    return Choice(**options)
