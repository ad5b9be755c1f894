"""The runs of a table: their command lines and folders, and which of them are missing."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path

from ..cli import build, flags, identity
from ..cli.config import ExperimentConfig
from ..cli.parsing import runs_code
from ..grid.cells import Cell
from . import datasets, saved_cells
from .paper_tables import NONE, Column, PaperTable
from .table_cells import ColumnRuns


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
            words = (*words, *self.more, *last, f"--output_dir={folder}")
            yield Cell(line.name, column.name, words, folder)

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


def plan(request: Request, column: Column) -> tuple[ColumnRuns, list[Cell]]:
    """Return (the table's section of a column, its missing runs that are asked for).

    Raises:
      InputError: invalid flags, a data set of --stand_in that isn't there, or a run that can't
        begin.
    """

    def missing(cells: list[Cell]) -> list[Cell]:
        return [one for one in cells if one.row not in section.saved and not one.finished()]

    complete = request.scale == "full"
    is_asked = not request.columns or column.name in request.columns
    section, cells = on_data(request, column)
    todo = missing(cells)
    problem, note = datasets.check_data(todo[0].config, complete) if todo else (None, None)
    section = replace(section, problem=problem, note=section.note or note)
    if problem:
        for instead in request.substitutes(column, todo[0].config.dataset)[:1]:
            section, cells = on_data(request, column, instead)
            todo = missing(cells)
            absent, _ = datasets.check_data(todo[0].config, complete) if todo else (None, None)
            if absent and is_asked:
                raise pfl.InputError(absent)
    todo = [cell for cell in todo if not request.rows or cell.row in request.rows]
    todo = [] if section.problem or not is_asked else todo
    for cell in todo:
        _check(request, cell)  # errors show before anything compiles
    return section, todo


def _check(request: Request, cell: Cell) -> None:
    """Raise `InputError` if an algorithm's needs or the row's client are missing."""
    inputs, line = cell.inputs(), request.table.line(cell.row)
    build.prepare(inputs)
    count = inputs.partition.num_clients
    if line.client is not None and line.client >= count:
        raise pfl.InputError(
            f"The row {line.title!r} is client {line.client}, and there are clients 0..{count - 1}."
        )


def on_data(
    request: Request, column: Column, other: str | None = None
) -> tuple[ColumnRuns, list[Cell]]:
    """Return (the section of a column, with its saved cells if the command has any, its runs).

    Args:
      other: a substitute data set, or blank samples; by default the column's own data set, or the
        one that the command names.
    """
    cells, table = list(request.cells(column, other)), request.table
    folders = {cell.row: cell.folder / table.line(cell.row).algorithm for cell in cells}
    section = ColumnRuns(column, folders)
    if request.saved is not None:
        score = [table.score, column.average or table.average]
        runs = {}
        for cell in cells:
            line = table.line(cell.row)
            if cell.has_data():
                facts = [cell.inputs().identity, *score, table.over_of(line), column.quantity]
                facts += [column.times, line.model or column.model, line.client]
                runs[cell.row] = digest(facts)
        section = replace(section, runs=runs)
        section = replace(section, saved=saved_cells.current(saved_cells.load(request), section))
    if other is None:
        papers = replace(request, more=()).cells(column)
        names = [cell.config.dataset for cell in next(zip(cells, papers, strict=False), ())]
        other = names[0] if len(set(names)) > 1 else ""
    if other and other.startswith(datasets.BLANK):
        return replace(section, note=datasets.NOTE), cells
    if other:
        note = f"on {other} instead of the paper's data set"
        section = replace(section, note=note, other_data=not column.measure.anywhere)
    return section, cells
