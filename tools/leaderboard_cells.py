"""Rows, settings and cells of the leaderboard, and the file of a cell."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from experiments import study
from experiments.cli import flag_roles, flags, identity
from experiments.cli.algorithms import parse_algorithms, setting_of
from experiments.cli.config import ExperimentConfig
from experiments.cli.parsing import last_of_each, name_and_value
from experiments.outputs.run_files import plain, write_text
from fedjax_pfl.data.files import read_json
from fedjax_pfl.results.model_names import PERSONALIZED, TRAINED

TABLE = Path(__file__).with_name("leaderboard.toml")
PRESET = "study/leaderboard"
MOMENTS = {"received": PERSONALIZED, "trained": TRAINED}
SEED, SEEDS = 0, 3  # of the tuning; of the scores, which follow it
FIRST = 25  # rows that are run in further settings too, whose names begin so:
REDRAWN = "redrawn_"  # a setting of all rows, with another draw of its partition
NORMALIZED = "normalized_"  # of the rows with this mark
FURTHER = (REDRAWN, "long_", "cifar10_", NORMALIZED)
NEAR = 10 ** (1 / 6)  # a third of the way between rates of 0.01, 0.03, 0.1


@dataclass(frozen=True)
class Row:
    """What is tuned of an algorithm beside the learning rate.

    Attributes:
      grid: a hyperparameter and its values, NAME=VALUE,VALUE; "" for none.
      origin: of the published value.
      more: other hyperparameters, NAME=VALUE.
      factor: of the learning rates.
      note: what a reader of its numbers should know.
      out: why the algorithm is not run in the settings of all rows; "" if it is.
      normalized: it is run where networks have batch normalization.
    """

    algorithm: str
    grid: str = ""
    origin: str = ""
    more: tuple[str, ...] = ()
    factor: float = 1.0
    note: str = ""
    out: str = ""
    normalized: bool = False

    def settings(self) -> list[str]:
        """Return its hyperparameters that are not tuned, as of --set."""
        return [f"{self.algorithm}.{word}" for word in self.more]

    def grids(self, rates: str) -> list[str]:
        """Return what is tuned, from the learning rates "A,B": as many combinations for all."""
        nearby = (1.0,) if self.grid else (1 / NEAR, 1.0, NEAR)
        numbers = [f"{float(rate) * near * self.factor:.2g}" for rate in rates.split(",")
                   for near in nearby]  # fmt: skip
        own = [f"{self.algorithm}.{self.grid}"] * bool(self.grid)
        return [f"learning_rate={','.join(numbers)}", *own]


@cache
def rows() -> dict[str, Row]:
    """Return the rows by algorithm, in the order of the queue.

    Raises:
      InputError: an unknown or a missing algorithm, or a value that it refuses.
    """
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    found = {
        name: Row(name, one.pop("grid", ""), one.pop("from", ""), tuple(one.pop("with", ())),
                  one.pop("rates", 1.0), one.pop("note", ""), one.pop("out", ""),
                  one.pop("normalized", False))
        for name, one in table.items()
    }  # fmt: skip
    other = sorted(found.keys() ^ set(pfl.core.ALGORITHMS)) + [n for n, one in table.items() if one]
    if other:
        raise pfl.InputError(f"{TABLE.name} must have grid, from, with, rates, note, out and "
                             f"normalized of each algorithm: see {other[0]}.")  # fmt: skip
    for name, row in found.items():
        key, values = name_and_value("grid", row.grid) if row.grid else ("", "")
        for value in values.split(","):
            own = (f"{key}={value}",) if key else ()
            parse_algorithms([name], [f"{name}.{word}" for word in row.more + own])
    return found


@dataclass(frozen=True)
class Task:
    """A cell to measure: an algorithm in a setting, with the flags of its tuning."""

    algorithm: str
    setting: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join(["python -m experiments.sweep", *self.words])

    @property
    def revision(self) -> str:
        return identity.revision(pfl.core.ALGORITHMS[self.algorithm])


@cache
def _defaults() -> ExperimentConfig:
    return flags.parse(["run"])


def explicit(config: ExperimentConfig) -> list[str]:
    """Return the flags of a run that differ from their defaults."""
    usual, words = _defaults(), []
    for group in config.by_group().values():
        for name, value in group.items():
            if name not in flag_roles.NEUTRAL and value != usual[name].default:
                words += flags.flag_words(name, value)
    return words


def tasks() -> list[Task]:
    """Return all cells that the leaderboard has: those of the first rows in the settings of all
    rows, those of the other rows there, and those of the further settings."""
    run = [row for row in rows().values() if not row.out]
    preset, found = ["study", f"--preset={PRESET}"], []
    for column in study.parts("setting", flags.parse(preset, study.define).setting):
        words = [*preset, *column.words, f"--seed={SEED}", "--num_seeds=1"]
        config = flags.parse(words, study.define)
        (rates,) = last_of_each([setting_of(word) for word in config.grid])
        chosen = run[:FIRST] if column.name.startswith(FURTHER) else run
        if column.name.startswith(NORMALIZED):
            chosen = [row for row in rows().values() if row.normalized]
        for row in chosen:
            own = config.replace(algorithms=[row.algorithm], set=row.settings())
            grids = [f"--grid={word}" for word in row.grids(rates.partition("=")[2])]
            found.append(Task(row.algorithm, column.name, (*explicit(own), *grids)))
    first = list(rows())[:FIRST]
    return sorted(
        found, key=lambda one: (one.setting.startswith(FURTHER), one.algorithm not in first)
    )


@dataclass(frozen=True)
class Scores:
    """The model of one moment, of the hyperparameters that were best on validation samples of it.

    Attributes:
      chosen: value by name.
      command: repeats the final runs.
      accuracies: [S, N], of the clients' test samples; NaN without a model.
      self_weight: clients' mean weight on their own models in the last rounds; None if unknown.
      remarks: of the result on itself, such as "no cluster was split"; None if unknown.
      steps: minibatch gradients of a client in a round, without those for scores; None if unknown.
    """

    chosen: dict[str, str]
    command: str
    accuracies: list[list[float]]
    self_weight: float | None = None
    remarks: list[str] | None = None
    steps: float | None = None

    @property
    def by_client(self) -> np.ndarray:
        return np.array(self.accuracies, float)


@dataclass(frozen=True)
class Cell:
    """A measured algorithm in a setting.

    Attributes:
      revision: of engine and algorithm.
      version: of the library.
      command: of the tuning.
      tried: the combinations, values by name; validation: percent by moment, one for each.
      scores: by moment.
      seeds: of the scores; test_sizes: of the clients.
      mb_up, mb_down: megabytes of a client in a round.
      cpu_seconds: of the tuning and the final runs.
      error: why it has no scores; "" if it has.
    """

    algorithm: str
    setting: str
    revision: str
    version: str
    command: str
    tried: dict[str, list[str]] = field(default_factory=dict)
    validation: dict[str, list[float]] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)
    test_sizes: list[int] = field(default_factory=list)
    mb_up: float = 0.0
    mb_down: float = 0.0
    cpu_seconds: float = 0.0
    error: str = ""

    def is_of(self, task: Task) -> bool:
        """Return whether it is the task's, of the same revision."""
        return (self.command, self.revision) == (task.command, task.revision)

    def write(self, folder: Path) -> None:
        """Write its file below the folder of all cells, whole or not at all."""
        lines = [f"{json.dumps(k)}: {json.dumps(plain(v))}" for k, v in asdict(self).items()]
        path = folder / self.setting / f"{self.algorithm}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


Cells = Mapping[tuple[str, str], Cell]  # by setting and algorithm


def read(path: Path) -> Cell:
    """Read the file of a cell.

    Raises:
      InputError: it is none.
    """
    values: dict[str, Any] = read_json(path)
    try:
        scores = {name: Scores(**one) for name, one in values.pop("scores").items()}
        found = values.pop("validation").items()  # NaN is null in files
        validation = {name: np.array(one, float).tolist() for name, one in found}
        one = Cell(**values, validation=validation, scores=scores)
        shapes = {scores.by_client.shape for scores in one.scores.values()}
        if not one.error and shapes != {(len(one.seeds), len(one.test_sizes))}:
            raise ValueError("accuracies must be [S, N]")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise pfl.InputError(f"{path} is not the file of a cell: {error!r}.") from None
    return one


def kept(folder: Path) -> dict[tuple[str, str], Cell]:
    """Return the cells below a folder."""
    found = map(read, sorted(folder.glob("*/*.json")))
    return {(one.setting, one.algorithm): one for one in found}


def missing(tasks_: Sequence[Task], cells: Cells) -> list[Task]:
    """Return the tasks without a cell, or with one of other flags or of another revision."""
    held = {(task.setting, task.algorithm): task for task in tasks_}
    return [task for at, task in held.items() if at not in cells or not cells[at].is_of(task)]
