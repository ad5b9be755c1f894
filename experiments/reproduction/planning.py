"""The runs of a table: their command lines and folders, and which of them are missing."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path

from ..cli import build, data_flags, flags, identity, run_folder
from ..cli.config import ExperimentConfig
from ..cli.parsing import runs_code
from . import datasets, saved_cells
from .cells import Section
from .paper_tables import NONE, Column, Line, PaperTable


@dataclass(frozen=True)
class Cell:
    """A run: the words of its command line, and its folder."""

    line: Line
    words: tuple[str, ...]
    folder: Path

    @property
    def algorithm_folder(self) -> Path:
        return self.folder / self.line.algorithm

    def args(self) -> ExperimentConfig:
        return flags.parse(["run", *self.words])

    def inputs(self) -> build.Inputs:
        """Return the run's configuration and data.

        Raises:
          InputError: invalid flags, or no data set.
        """
        return build.load_inputs(self.args(), shared=True)

    def finished(self) -> bool:
        """Return whether the folder has all results of the run.

        If the data set is gone, its content can't be compared.

        Raises:
          InputError: the folder is something else, a run on other data for one.
        """
        if not self.folder.exists():
            return False
        if self.has_data():
            accept = self.args().accept_changed_code
            if run_folder.check(self.folder, self.inputs().identity, accept=accept).way:
                return False  # the table's file had fewer rounds or seeds
        return run_folder.finished(self.folder, [self.line.algorithm])

    def has_data(self) -> bool:
        """Return whether the data set exists."""
        try:
            data_flags.load_dataset(self.args(), shared=True)
        except pfl.InputError:
            return False
        return True

    def identity(self, *more: object) -> str | None:
        """Return the digest of the run's identity and `more`; None without its data set."""
        return digest([self.inputs().identity, *more]) if self.has_data() else None

    def experiment(self) -> build.Experiment:
        """Return the checked run, whose folder is new or that of the same run."""
        inputs = build.load_inputs(self.args())
        folder = build.Folder(**run_folder.inspect(inputs.config, inputs.identity))
        return build.prepare(inputs, folder)

    def check(self) -> None:
        """Raise `InputError` if an algorithm's needs or the row's client are missing."""
        inputs = self.inputs()
        build.prepare(inputs)
        client, count = self.line.client, inputs.partition.num_clients
        if client is not None and client >= count:
            raise pfl.InputError(
                f"The row {self.line.title!r} is client {client}, and there are clients "
                f"0..{count - 1}."
            )


@dataclass(frozen=True)
class Request:
    """A table to make.

    Attributes:
      table: what to run.
      scale: one of `paper_tables.SCALES`.
      more: further flags of `experiments.run`.
      output: folder of the table.
      stand_in: what to use for a missing data set: by its name, or under "" for columns that say
        that another one makes sense.
      reading: one of `paper_tables.READINGS`, or None for the presets as they are.
      saved: folder of saved cells, see `saved_cells`, or None.
      columns, rows: names of those to run; () is all.
    """

    table: PaperTable
    scale: str
    more: tuple[str, ...]
    output: Path
    stand_in: Mapping[str, str] = field(default_factory=dict)
    reading: str | None = None
    saved: Path | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def cells(self, column: Column, other: str | None = None) -> Iterator[Cell]:
        """Yield the runs of a column's rows, on another data set if one is named."""
        table, scale = self.table, self.scale
        preset = column.preset_of(scale, self.reading)
        place = Path(preset).name + (f"-on-{other}" if other else "")
        place = self.output / place.replace("/", "_")
        for line in table.row:
            if not table.has_run(line, column):
                continue
            folder = place / table.run_row(line).name
            readings = [p.reading.get(self.reading or "", NONE) for p in (table, column, line)]
            words = [
                f"--preset={preset}",
                *table.flags,
                *(w for one in readings for w in one.flags),
            ]
            words += [*table.changes(scale), *column.changes(scale), *line.flags]
            words += [f"--dataset={other}", *table.stand_in] if other else []
            settings = [*line.settings, *table.row_changes(scale).get(line.title, ())]
            settings += [*column.settings, *(word for one in readings for word in one.settings)]
            own = [f"--set={word}" for word in settings if word.startswith(f"{line.algorithm}.")]
            words = [_filled(word, column.values) for word in (*words, "--nosave_models")]
            last = [_filled(w, column.values) for w in (f"--algorithms={line.algorithm}", *own)]
            for word in filter(runs_code, (*words, *last)):
                raise pfl.InputError(
                    f"{table.name}: its flags have {word}, and a table runs no code: give it on "
                    "the command line."
                )
            yield Cell(line, (*words, *self.more, *last, f"--output_dir={folder}"), folder)

    def substitutes(self, column: Column, name: str) -> list[str]:
        """Return substitutes for the column's data set `name`, the best first."""
        general = self.stand_in.get("") if column.stand_in else None
        another = self.stand_in.get(name, general)
        blank = datasets.register_blank(name) if column.measure.blank else None
        # Another data set has other shapes; but where it is run anyway, its costs come with it.
        both = (another, blank) if column.stand_in else (blank, another)
        return [one for one in both if one]


def _filled(word: str, values: Mapping[str, object]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


def output_folder(
    name: str, scale: str, args: ExperimentConfig, reading: str | None = None
) -> Path:
    """Return --output_dir, or runs/reproduce-NAME-SCALE with a hash of further flags if any."""
    if args.output_dir is not None:
        return as_path("--output_dir", args.output_dir)
    now = identity.run_identity(args)
    mark = "" if now == identity.run_identity(flags.parse(["run"])) else f"-{digest(now)}"
    return Path("runs") / f"reproduce-{name}-{scale}{f'-{reading}' if reading else ''}{mark}"


def digest(value: object) -> str:
    """Return eight digits of the hash of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:8]


def plan(request: Request, column: Column) -> tuple[Section, list[Cell]]:
    """Return (the table's section of a column, its missing runs).

    Raises:
      InputError: invalid flags, a data set of --stand_in that isn't there, or a run that can't
        begin.
    """

    def missing(cells: list[Cell]) -> list[Cell]:
        rows = request.rows or [cell.line.name for cell in cells]
        todo = (cell for cell in cells if cell.line.name in rows)
        return [c for c in todo if c.line.name not in section.saved and not c.finished()]

    complete = request.scale == "full"
    section, cells = own(request, column)
    todo = missing(cells)
    problem, note = datasets.check_data(todo[0].args(), complete) if todo else (None, None)
    section = replace(section, problem=problem, note=section.note or note)
    if problem:
        for instead in request.substitutes(column, todo[0].args().dataset)[:1]:
            section, cells = other(request, column, instead)
            todo = missing(cells)
            absent, _ = datasets.check_data(todo[0].args(), complete) if todo else (None, None)
            if absent:
                raise pfl.InputError(absent)
    todo = [] if section.problem else todo
    for cell in todo:
        cell.check()  # errors show before anything compiles
    return section, todo


def own(request: Request, column: Column) -> tuple[Section, list[Cell]]:
    """Return a column on its own data set, or on the one that the command names."""
    cells = list(request.cells(column))
    section = _section(request, column, cells)
    names = {cell.args().dataset for cell in cells[:1]}
    papers = {cell.args().dataset for cell in islice(replace(request, more=()).cells(column), 1)}
    for name in names - papers:
        section = on_other_data(section, name)
    return section, cells


def other(request: Request, column: Column, name: str) -> tuple[Section, list[Cell]]:
    """Return a column on the substitute data set, or on blank samples."""
    cells = list(request.cells(column, name))
    section = _section(request, column, cells)
    if name.startswith(datasets.BLANK):
        return replace(section, note=datasets.NOTE), cells
    return on_other_data(section, name), cells


def _section(request: Request, column: Column, cells: Sequence[Cell]) -> Section:
    """Return a column with its runs, and with its saved cells if the command has any."""
    section = Section(column, {cell.line.name: cell.algorithm_folder for cell in cells})
    if request.saved is None:
        return section
    table = request.table
    score = [table.score, column.average or table.average, table.over, column.quantity]
    score += [column.times]
    runs = {
        cell.line.name: cell.identity(*score, cell.line.model or column.model, cell.line.client)
        for cell in cells
    }
    section = replace(section, runs={row: run for row, run in runs.items() if run})
    facts = saved_cells.load(request)
    return replace(section, saved=saved_cells.current(facts, section))


def on_other_data(section: Section, name: str) -> Section:
    """Return the column's section on another data set than the paper's."""
    note = f"on {name} instead of the paper's data set"
    return replace(section, note=note, other_data=not section.column.measure.anywhere)


def finished_section(request: Request, column: Column) -> Section:
    """Return a column that was not requested, with its finished runs."""
    section, cells = own(request, column)
    if not cells or section.saved or any(cell.finished() for cell in cells):
        return section
    for word in request.substitutes(column, cells[0].args().dataset):
        shown, cells = other(request, column, word)
        if shown.saved or any(cell.finished() for cell in cells):
            return shown
    return section
