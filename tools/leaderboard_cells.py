"""Cells of the leaderboard: from its file, from studies, and back into the file."""

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import absl.flags
import numpy as np

import fedjax_pfl as pfl
from experiments.cli import flag_roles, flags, identity
from experiments.cli.config import ExperimentConfig
from experiments.figures.loading import read
from experiments.figures.runs import Run
from experiments.study import TUNING

SETTINGS = {
    "dirichlet": "Dirichlet",
    "grouped": "Grouped",
    "pathological": "Pathological",
    "sampled": "100 clients, sampled",
    "features": "Feature shift",
    "drift": "Drift",
}
CELLS = "leaderboard.csv"
SEED = "accuracy_percent_seed_"


@dataclass(frozen=True)
class Cell:
    """An algorithm's results in a setting.

    Attributes:
      accuracies: percent after the last round, by seed.
      learning_rate: the one that was chosen.
      tried: the learning rates to choose from.
      mb_up: of a client in a round; None where it was not kept.
      scored: whether all clients have a model.
      command: repeats the run.
    """

    accuracies: Mapping[str, float]
    learning_rate: float
    tried: tuple[float, ...]
    mb_up: float | None
    scored: bool
    command: str

    def flags(self) -> ExperimentConfig:
        """Return the flags of the command."""
        return flags.parse(["run", *shlex.split(self.command)[3:]])


Cells = Mapping[tuple[str, str], Cell]  # by algorithm and setting


def kept(folder: Path) -> dict[tuple[str, str], Cell]:
    """Return the cells of the folder's file; without one there are none.

    Raises:
      InputError: it is not a file of cells.
    """
    file = folder / CELLS
    if not file.exists():
        return {}
    found: dict[tuple[str, str], Cell] = {}
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines, strict=True):
                place = row["algorithm"], row["setting"]
                if place in found:
                    raise ValueError(f"{', '.join(place)} is there twice")
                found[place] = Cell(
                    {k[len(SEED) :]: float(v) for k, v in row.items() if k.startswith(SEED)},
                    float(row["learning_rate"]),
                    tuple(map(float, row["tried"].split())),
                    float(row["mb_up"]) if row["mb_up"] else None,
                    row["scored"] == "all",
                    row["command"],
                )
    except (KeyError, ValueError, TypeError, AttributeError, csv.Error) as error:
        raise pfl.InputError(f"{file} is not a file of cells: {error!r}.") from None
    return found


def check(cells: Cells) -> None:
    """Raise `InputError` unless all cells are comparable.

    They have known algorithms and settings, accuracies of the same seeds, and learning rates chosen
    from the same ones; the commands of a setting differ in nothing but these and the algorithm.
    """
    first = next(iter(cells.values()))
    commands: dict[str, tuple[str, Any]] = {}
    for (name, setting), one in cells.items():
        where = f"{name}, {setting}"
        if name not in pfl.core.ALGORITHMS or setting not in SETTINGS:
            raise pfl.InputError(f"{where}: no such algorithm or setting; remove its lines.")
        values = np.array(list(one.accuracies.values()))
        if list(one.accuracies) != list(first.accuracies) or not np.all(abs(values - 50) <= 50):
            seeds = ", ".join(first.accuracies)
            raise pfl.InputError(f"{where} needs an accuracy in 0..100 for each seed of {seeds}.")
        if one.tried != first.tried or one.learning_rate not in one.tried:
            raise pfl.InputError(f"{where} did not choose among the learning rates of other cells.")
        try:
            known = identity.run_identity(one.flags(), {"algorithms": "", "learning_rate": ""})
        except (pfl.InputError, ValueError, absl.flags.Error) as error:
            raise pfl.InputError(f"The command of {where} can't be read: {error}") from None
        another, usual = commands.setdefault(setting, (name, known))
        other = sorted(flag for flag in known | usual if known.get(flag) != usual.get(flag))
        if other:
            raise pfl.InputError(f"{where} differs from {another} in flags: {', '.join(other)}.")


def load(folders: Sequence[Path]) -> dict[tuple[str, str], Cell]:
    """Return the finished cells of studies.

    Raises:
      InputError: no finished cell, or one of two studies.
    """
    found: dict[tuple[str, str], Cell] = {}
    for folder in folders:
        for summary in sorted(folder.glob("*/*/*/summary.json")):
            setting, row = summary.parts[-4:-2]
            if setting == TUNING or setting not in SETTINGS:
                continue
            run = read(summary.parent)
            if (run.algorithm, setting) in found:
                raise pfl.InputError(f"{run.algorithm}, {setting} is in two of the folders.")
            found[run.algorithm, setting] = cell(run, tried(folder / TUNING / setting / row))
    if folders and not found:
        raise pfl.InputError(f"{', '.join(map(str, folders))} has no finished cell of the study.")
    return found


def cell(run: Run, rates: tuple[float, ...]) -> Cell:
    """Return the cell of a finished run that chose among these learning rates."""
    last = 100 * np.asarray(run.result.curve()[:, 0, -1], float)
    accuracies = {str(seed): float(x) for seed, x in zip(run.seeds, last, strict=True)}
    return Cell(
        accuracies,
        run.summary["training"]["learning_rate"],
        rates,
        run.summary["traffic_mb_per_client_round"]["up"],
        len(run.summary["scored_clients"]) == run.num_clients,
        command(run),
    )


def tried(folder: Path) -> tuple[float, ...]:
    """Return the learning rates of a row's tuning.

    Raises:
      InputError: the folder has no such file, or other hyperparameters were tried.
    """
    file = folder / "sweep.csv"
    if not file.exists():
        raise pfl.InputError(f"{file} does not exist: which learning rates were tried?")
    with file.open(encoding="utf-8") as lines:
        rows = csv.DictReader(lines)
        names = list(rows.fieldnames or ())
        if names[1 : names.index("seed") if "seed" in names else None] != ["learning_rate"]:
            raise pfl.InputError(f"{file} has other hyperparameters than learning_rate.")
        return tuple(sorted({float(one["learning_rate"]) for one in rows}))


def command(run: Run) -> str:
    """Return the command that repeats a run: its flags that differ from their defaults."""
    usual, words = flags.parse(["run"]), []
    for group in run.config["flags"].values():
        for name, value in group.items():
            if name in usual and name not in flag_roles.NEUTRAL and value != usual[name].default:
                words += flags.flag_words(name, value)
    return f"python -m experiments.run {shlex.join(words)}"


def as_csv(cells: Cells) -> str:
    """Return the CSV file: a line for each cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    seeds = list(next(iter(cells.values())).accuracies)
    heading = [f"{SEED}{seed}" for seed in seeds]
    facts = ["learning_rate", "tried", "mb_up", "scored", "command"]
    writer.writerow(["algorithm", "setting", *heading, *facts])
    order = {setting: at for at, setting in enumerate(SETTINGS)}
    for name, setting in sorted(cells, key=lambda one: (one[0], order[one[1]])):
        one = cells[name, setting]
        writer.writerow([
            name, setting, *(round(one.accuracies[seed], 6) for seed in seeds), one.learning_rate,
            " ".join(f"{rate:g}" for rate in one.tried),
            "" if one.mb_up is None else f"{one.mb_up:.4g}",
            "all" if one.scored else "some", one.command,
        ])  # fmt: skip
    return file.getvalue()
