"""Study of algorithms in several settings: `python -m experiments.study --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("study")

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import absl.flags
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import check_name

from . import sweep
from .cli import console, flags, identity, presets, run_folder, shell
from .cli.algorithms import setting_of
from .cli.config import ExperimentConfig
from .cli.flag_groups import Group
from .cli.parsing import last_of_each
from .cli.start import called
from .figures.loading import read
from .grid import sections, study_report
from .grid.axes import setting_words
from .grid.cells import Cell, run_all
from .grid.ranking import Outcome, best

USAGE = f"""\
Run algorithms in several settings and write one table for each measure, and a figure.

  {called("study")} --preset=study/privacy --data_dir=DATA
  {called("study")} --dataset=digits --algorithms=fedavg,ditto --setting='iid: --alpha=100' \\
      --setting='skewed: --alpha=0.1'

Presets: {", ".join(presets.studies())}.

With --grid, as of {called("sweep")}, each row first tries combinations of hyperparameters in each
column, as many as every other row, and takes the one with the best validation accuracy:

  {called("study")} --preset=digits_quick --algorithms=local,fedavg,feddwa --setting=all: \\
      --grid=learning_rate=0.03,0.1,0.3 --grid=feddwa.top_k=1,3 --budget=3

A --setting is a column, named before the colon, with further flags of {called("run")}. The rows are
the --algorithms, or one for each --row, which has one algorithm and further flags. Every cell is a
run of {called("run")} in its own folder below --output_dir; the same command continues a killed
study.
"""
TUNING = "tuning"  # folder of the sweeps
AFTER = f"\nAll other flags are those of {called('run')}."


def define(values: absl.flags.FlagValues) -> None:
    """Define the flags beside those of a run."""
    group = Group(values, "study")
    group.pairs("setting", "a column of the table, 'NAME: FLAGS'")
    meaning = "a row of the table, 'NAME: --algorithms=ALGORITHM FLAGS' (default: --algorithms)"
    group.pairs("row", meaning)
    known = f"{', '.join(study_report.NAMES)}, a metric, or a scalar that all runs record"
    usual = "(default: the task's main metric, worst_decile)"
    group.names("measures", [], f"a table each: {known} {usual}")
    meaning = "horizontal axis of the figure: 'setting' or one of --measures"
    group.text("x", study_report.SETTING, meaning)
    sweep.define_grid(group)
    group.integer("tuning_seeds", 1, "seeds, from the first, with which --grid is tried", 1)


class Part(NamedTuple):
    """A row or a column: its name, and the flags that it adds."""

    name: str
    words: tuple[str, ...]

    @property
    def folder(self) -> str:
        return re.sub(r"[^\w.+-]+", "_", self.name).strip("_")


def parts(flag: str, texts: Sequence[str]) -> list[Part]:
    """Parse the values of --setting or --row.

    Raises:
      InputError: a value without name or with an open quote, or a name or its folder twice.
    """
    found: dict[str, Part] = {}
    for text in texts:
        name, colon, more = text.partition(":")
        try:
            part = Part(name.strip(), tuple(shlex.split(more)))
        except ValueError as error:
            raise pfl.InputError(f"--{flag}={text[:100]!r} can't be read: {error}.") from None
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
    own -= {"grid"}
    cells = []
    for setting in settings:
        if any(word.lstrip("-").partition("=")[0] == "algorithms" for word in setting.words):
            raise pfl.InputError(
                f"--algorithms belongs to the rows, not to the column {setting.name!r}: give it to "
                "the study or to a --row."
            )
        for row in rows:
            place = output / setting.folder / row.folder
            words = [*setting.words, *row.words]
            for word in words:
                if word.lstrip("-").partition("=")[0] in own:
                    raise pfl.InputError(f"{word} belongs to the whole study, not to one cell.")
            words = (*argv[1:], *words, f"--output_dir={place}")
            cell = Cell(row.name, setting.name, words, place, define)
            if len(cell.config.algorithms) != 1:
                raise pfl.InputError(
                    f"A row has one algorithm, and {row.name!r} has "
                    f"{', '.join(cell.config.algorithms)}: add --algorithms=ALGORITHM to it."
                )
            cells.append(cell)
    return cells


def tuned(cells: Sequence[Cell], output: Path) -> list[tuple[Cell, sweep.Plan]]:
    """Return the cells with the sweeps that choose their hyperparameters; [] without a --grid.

    Raises:
      InputError: a cell that can't run, or rows that would try different numbers of combinations.
    """
    if not any(cell.config.grid for cell in cells):
        for name in ("budget", "rank_by", "tuning_seeds"):
            if cells[0].config[name].present:
                raise pfl.InputError(f"--{name} needs a --grid: without one nothing is tuned.")
        return []
    algorithms = {cell.algorithm for cell in cells}
    planned, counts = [], {}
    for cell in cells:
        if cell.folder.parent.name == TUNING:
            raise pfl.InputError(f"--setting can't be {TUNING!r} beside --grid: rename it.")
        names = last_of_each([setting_of(word) for word in cell.config.grid])
        alien = tuple(f"{name}." for name in algorithms - {cell.algorithm})
        names = [word for word in names if not word.startswith(alien)]
        place = output / TUNING / cell.folder.parent.name / cell.folder.name
        count = min(cell.config.num_seeds, cell.config.tuning_seeds)
        words = [f"--output_dir={place}", f"--num_seeds={count}", "--moments=received"]
        with cell.named():
            plan = sweep.planned(["study", *cell.words, *words], define, names)
        counts.setdefault(sum(len(one.inside) for one in plan.programs), cell)
        split = plan.config["validation_fraction"].present  # not if the partition has samples
        if split and not cell.config["validation_fraction"].present:
            cell = replace(cell, words=(*cell.words, sweep.VALIDATION))
        planned.append((cell, plan))
    if len(counts) > 1:
        low, *_, high = sorted(counts)
        raise pfl.InputError(
            f"--grid has {low} combinations for {counts[low].row!r} and {high} for "
            f"{counts[high].row!r}: give rows equally many, or --budget={low} to draw that many."
        )
    return planned


def chosen(cell: Cell, outcomes: Sequence[Outcome]) -> Cell:
    """Return the cell with the best hyperparameters that it tried."""
    (one,) = best(outcomes)
    return replace(cell, words=(*cell.words, *setting_words(one.setting)))


@shell.script(shell.GOES_ON, "with the missing runs")
def main(argv: list[str]) -> int:
    """Run the command."""
    config = flags.parse(argv, define)
    if flags.answered(config, USAGE, ["study"], define, AFTER):
        return 0
    if config["headline"].present:
        raise pfl.InputError("--headline is for tables of runs: a study has --measures.")
    content = {name: list(config[name].value) for name in ("setting", "row")}
    tuning = ("grid", "budget", "rank_by", "tuning_seeds")
    content |= {name: config[name].value for name in tuning if config[name].present}
    entries = identity.run_identity(config, content)
    output = run_folder.output_folder(config, entries)
    study_report.check(config.measures, config.x)
    cells = cells_of(argv, config, output)
    run_folder.check(output, entries, False)
    plans = tuned(cells, output)
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    pending, metrics = [], []
    for cell in [] if plans else cells:  # errors before any run; what is tuned is not known yet
        if (experiment := cell.experiment()) is not None:
            pending.append(cell)
            metrics.append(experiment.federation.measures)
    study_report.check_metrics(config.measures, metrics)
    with run_folder.opened(output, entries, False):
        if plans:
            for cell, plan in plans:
                print(f"\n{cell.row}, {cell.column}: tuning", flush=True)
                outcomes[cell.row, cell.column] = sweep.sweep(plan, quiet=True)
            cells = [chosen(cell, outcomes[cell.row, cell.column]) for cell, _ in plans]
            pending = cells
        run_all(pending)
        runs = {(cell.row, cell.column): read(cell.result) for cell in cells}
        report = study_report.Report(runs, tuple(config.measures), config.x)
        parts = sections.sections(report, outcomes)
        sections.write(report, output, parts, f"{called('study')} {shlex.join(argv[1:])}")
    for part in parts:
        print(f"\n{part.title}")
        for table in part.tables:
            console.print_table(Console(), table)
        print("".join(f"\n{note}\n" for note in part.paragraphs()))
    print(f"Report (study.html, .md, .tex), numbers and runs: {output}")
    return 0
