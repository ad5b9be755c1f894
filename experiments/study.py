"""Study of algorithms in several settings: `python -m experiments.study --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("study")

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import absl.flags
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import check_name

from . import run
from .cli import build, data_flags, flags, identity, presets, run_folder, shell
from .cli.config import ExperimentConfig
from .cli.console import print_table
from .cli.flag_groups import Group
from .cli.start import called
from .figures.loading import read
from .studies import report as study_report

USAGE = f"""\
Run algorithms in several settings and write one table for each measure, and a figure.

  {called("study")} --preset=study/privacy --data_dir=DATA
  {called("study")} --dataset=digits --algorithms=fedavg,ditto --setting='iid: --alpha=100' \\
      --setting='skewed: --alpha=0.1'

Presets: {", ".join(presets.studies())}.

A --setting is a column, named before the colon, with further flags of {called("run")}. The rows are
the --algorithms, or one for each --row, which has one algorithm and further flags. Every cell is a
run of {called("run")} in its own folder below --output_dir; the same command continues a killed
study."""
AFTER = f"All other flags are those of {called('run')}."


def define(values: absl.flags.FlagValues) -> None:
    """Define the flags beside those of a run."""
    group = Group(values, "study")
    group.pairs("setting", "a column of the table, 'NAME: FLAGS'")
    meaning = "a row of the table, 'NAME: --algorithms=ALGORITHM FLAGS' (default: --algorithms)"
    group.pairs("row", meaning)
    known = f"{', '.join(study_report.COSTS)}, a metric, or a scalar that all runs record"
    usual = "(default: the task's measure and its worst tenth)"
    group.names("measures", [], f"a table each: {known} {usual}")
    meaning = "what the figure has along x: 'setting' or one of --measures"
    group.text("x", study_report.SETTING, meaning)


class Part(NamedTuple):
    """A row or a column: its name, and the flags that it adds."""

    name: str
    words: tuple[str, ...]

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.+-]+", "_", self.name).strip("_")


@dataclass(frozen=True)
class Cell:
    """A run of the study.

    Attributes:
      config: its flags, with those of its row and column.
      folder: of its run.
    """

    row: str
    setting: str
    config: ExperimentConfig
    folder: Path

    @property
    def algorithm(self) -> str:
        return self.config.algorithms[0]

    def experiment(self) -> build.Experiment | None:
        """Return the checked run, or None if it is finished.

        Raises:
          InputError: it can't be run; the sentence names the cell.
        """
        try:
            inputs = build.load_inputs(self.config, _dataset(self.config))
            folder = build.Folder(**run_folder.inspect(inputs.config, inputs.identity))
            return None if folder.finished else build.prepare(inputs, folder)
        except pfl.InputError as error:
            raise pfl.InputError(f"{self.row}, {self.setting}: {error}") from None


def _dataset(config: ExperimentConfig) -> pfl.Dataset:
    return _loaded(config.dataset, config.data_dir, tuple(config.data_option))


@lru_cache(maxsize=1)  # most settings share theirs
def _loaded(name: str, data_dir: str | None, options: tuple[str, ...]) -> pfl.Dataset:
    words = [f"--dataset={name}", *(f"--data_option={option}" for option in options)]
    words += [] if data_dir is None else [f"--data_dir={data_dir}"]
    return data_flags.load_dataset(flags.parse(["run", *words]))


def parts(flag: str, texts: Sequence[str]) -> list[Part]:
    """Parse the values of --setting or --row.

    Raises:
      InputError: a value without name, or a name or its folder twice.
    """
    found: dict[str, Part] = {}
    for text in texts:
        name, colon, more = text.partition(":")
        part = Part(name.strip(), tuple(shlex.split(more)))
        if not colon or not part.folder:
            raise pfl.InputError(f"--{flag} must be 'NAME: FLAGS', got {text[:100]!r}.")
        if (other := found.setdefault(part.folder, part)) is not part:
            raise pfl.InputError(
                f"--{flag} needs different names, got {other.name!r} and {part.name!r}."
            )
        check_name("The folder of a cell,", part.folder)
    return list(found.values())


def cells_of(argv: Sequence[str], config: ExperimentConfig, output: Path) -> list[Cell]:
    """Return the runs of a study, column by column.

    Raises:
      InputError: a row or a column whose flags are invalid.
    """
    settings = parts("setting", config.setting)
    rows = parts("row", config.row) or [
        Part(name, (f"--algorithms={name}",)) for name in config.algorithms
    ]
    if not settings:
        raise pfl.InputError("Give the columns with --setting='NAME: FLAGS', one flag for each.")
    own = {name for name in config if config[name].group == "study"} | {"output_dir"}
    cells = []
    for setting in settings:
        for row in rows:
            place = output / setting.folder / row.folder
            words = [*setting.words, *row.words]
            for word in words:
                if word.lstrip("-").partition("=")[0] in own:
                    raise pfl.InputError(f"{word} belongs to the whole study, not to one cell.")
            parsed = flags.parse([*argv, *words, f"--output_dir={place}"], define)
            if len(parsed.algorithms) != 1:
                raise pfl.InputError(
                    f"A row has one algorithm, and {row.name!r} has "
                    f"{', '.join(parsed.algorithms)}: add --algorithms=ALGORITHM to it."
                )
            cells.append(Cell(row.name, setting.name, parsed, place))
    return cells


@shell.script(shell.GOES_ON, "with the missing runs")
def main(argv: list[str]) -> int:
    """Run the command."""
    config = flags.parse(argv, define)
    if config.help:
        print(f"{USAGE}\n\n{flags.define(define).module_help('study')}\n\n{AFTER}")
        return 0
    names = ("setting", "row", "measures", "x")
    entries = identity.run_identity(config, {name: list(config[name].value) for name in names[:2]})
    output = run_folder.output_folder(config, entries)
    study_report.check(config.measures, config.x)
    cells = cells_of(argv, config, output)
    accept = config.accept_changed_code
    run_folder.check(output, entries, (), accept)
    pending = [cell for cell in cells if cell.experiment() is not None]  # errors before any run
    with run_folder.opened(output, entries, (), accept):
        for number, cell in enumerate(pending, start=1):
            print(f"\n[{number}/{len(pending)}] {cell.row}, {cell.setting}", flush=True)
            experiment = cell.experiment()
            code = 0 if experiment is None else run.run(experiment, quiet=True)
            if code:
                return code
        runs = {(cell.row, cell.setting): read(cell.folder / cell.algorithm) for cell in cells}
        report = study_report.Report(runs, tuple(config.measures), config.x)
        report.write(output)
    for measure in report.measures:
        print(f"\n{report.heading(measure)}")
        print_table(Console(), report.table(measure))
    print("".join(f"\n{note}\n" for note in report.notes()))
    print(f"Tables, figure and runs: {output}")
    return 0
