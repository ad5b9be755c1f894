"""Repeats a paper's table: `python -m experiments.reproduce --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("reproduce")

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import absl.flags
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path

from . import run
from .cli import build, flagfiles, flags, resume, shell
from .cli.start import called
from .reproduction import report as reproduce_report
from .reproduction import tables
from .reproduction.data import trouble
from .reproduction.report import Section
from .reproduction.tables import Column, Line, PaperTable

USAGE = f"""\
Runs the cells of a paper's table and shows the measured numbers beside the paper's.

  {called("reproduce")} --list
  {called("reproduce")} --table=pfedla/1 --scale=small --data_dir=DATA
  {called("reproduce")} --table=feddwa/1 --stand_in=fashion_mnist --data_dir=DATA

Every cell is a run of {called("run")}. The same command continues a killed run and prints
finished ones."""
AFTER = f"All other flags are those of {called('run')}; the table notes their changes."
SCALES = ("small", "full")


def parse(argv: Sequence[str]) -> tuple[absl.flags.FlagValues, list[str]]:
    """(own flags, words for `experiments.run`)."""
    values = flagfiles.FlagValues()
    place = {"flag_values": values, "module_name": "reproduce"}
    text, names = absl.flags.DEFINE_string, absl.flags.DEFINE_list
    text("table", None, "PAPER/TABLE, one of --list", **place)
    text("scale", "small", "'small' (minutes, not comparable) or 'full' (the paper's)", **place)
    names("columns", [], "only these settings of the table", **place)
    names("rows", [], "only these rows of it", **place)
    text("stand_in", None, "data set to use where a setting's own is missing", **place)
    text(
        "tables",
        str(tables.FOLDER),
        "folder of the tables (default: those of this package)",
        **place,
    )
    absl.flags.DEFINE_boolean("list", False, "print the tables, their settings and rows", **place)
    absl.flags.DEFINE_boolean("help", False, "print this", short_name="h", **place)
    flagfiles.check_trust(argv)  # the words passed on include those of flagfiles
    return values, shell.parsed(values, argv, known_only=True)[1:]


@dataclass(frozen=True)
class Cell:
    """A run: the words of its command line, and its folder."""

    line: Line
    words: tuple[str, ...]
    folder: Path

    @property
    def algorithm_folder(self) -> Path:
        return self.folder / self.line.algorithm

    def finished(self) -> bool:
        """Whether it is whole.

        If the data set is gone, its content can't be compared.

        Raises:
          InputError: the folder is something else, a run on other data for one.
        """
        if not self.folder.exists():
            return False
        args = self.args()
        try:
            dataset = _loaded(args.dataset, args.data_dir, tuple(args.data_option))
        except pfl.InputError:
            dataset = None
        if dataset is not None:
            resume.check_folder(self.folder, args, **build.material(args, dataset).identity)
        return resume.finished(self.folder, [self.line.algorithm])

    def args(self) -> absl.flags.FlagValues:
        return flags.parse(["run", *self.words])

    def check(self) -> None:
        """Raises `InputError` where the run can't begin: an algorithm lacks what it needs."""
        args = self.args()
        dataset = _loaded(args.dataset, args.data_dir, tuple(args.data_option))
        build.prepare(args, made=build.material(args, dataset))


@lru_cache(maxsize=1)  # the rows of a column share theirs
def _loaded(name: str, data_dir: str | None, options: tuple[str, ...]) -> pfl.Dataset:
    words = [f"--dataset={name}", *(f"--data_option={option}" for option in options)]
    words += [] if data_dir is None else [f"--data_dir={data_dir}"]
    return build.load_dataset(flags.parse(["run", *words]))


@dataclass(frozen=True)
class Command:
    """The request: a table, a scale, further flags, and the output folder."""

    table: PaperTable
    scale: str
    stand_in: str | None
    more: tuple[str, ...]
    output: Path

    def cells(self, column: Column, stand_in: str | None = None) -> Iterator[Cell]:
        """The runs of a column: rows with a number in the paper and an algorithm here."""
        table, small = self.table, self.scale == "small"
        for line in table.row:
            if not line.registered or table.paper_number(line, column)[0] is None:
                continue
            folder = Path(column.preset).name + (f"-on-{stand_in}" if stand_in else "")
            folder = self.output / folder.replace("/", "_") / line.name
            words = [f"--preset={column.preset_of(small)}", *table.flags, *line.flags]
            words += [*table.small, *column.small] if small else []
            words += [f"--dataset={stand_in}", *table.stand_in] if stand_in else []
            chosen = [*line.settings, *column.settings]
            chosen = [f"--set={word}" for word in chosen if word.startswith(f"{line.algorithm}.")]
            words += ["--nosave_models", *self.more, f"--algorithms={line.algorithm}", *chosen]
            yield Cell(line, (*words, f"--output_dir={folder}"), folder)


def command(chosen: absl.flags.FlagValues, more: Sequence[str]) -> Command:
    """Checks the request; nothing is read or written yet.

    Raises:
      InputError: it is not valid.
    """
    args = flags.parse(["run", *more])  # a mistyped --table would be among these
    if chosen.table is None:
        raise pfl.InputError("Say which table with --table=PAPER/TABLE; --list shows them.")
    if chosen.scale not in SCALES:
        raise pfl.unknown_name("scale", chosen.scale, SCALES)
    if chosen.stand_in is not None and chosen.stand_in not in pfl.DATASETS:
        raise pfl.unknown_name("data set", chosen.stand_in, pfl.DATASETS)
    table = tables.load(chosen.table, as_path("--tables", chosen.tables))
    for flag, found in (("columns", table.column), ("rows", table.row)):
        for name in flagfiles.value_of(chosen, flag):
            if name not in {one.name for one in found}:
                kind = f"name in --{flag} of {table.name}"
                raise pfl.unknown_name(kind, name, [one.name for one in found])
    for name in ("algorithms", "set"):
        if args[name].present:
            raise pfl.InputError(f"--{name} can't be given here: choose algorithms with --rows.")
    output = default_folder(table, chosen.scale, args)
    if args.output_dir is not None:
        output = as_path("--output_dir", args.output_dir)
    return Command(table, chosen.scale, chosen.stand_in, tuple(more), output)


def default_folder(table: PaperTable, scale: str, args: absl.flags.FlagValues) -> Path:
    """runs/reproduce-PAPER-TABLE-SCALE, and a hash of further flags if they change anything."""
    name = f"reproduce-{table.name.replace('/', '-')}-{scale}"
    now = resume.configuration(args)
    if now != resume.configuration(flags.parse(["run"])):
        name += f"-{hashlib.sha256(json.dumps(now).encode()).hexdigest()[:8]}"
    return Path("runs") / name


def plan(asked: Command, column: Column, rows: Sequence[str]) -> tuple[Section, list[Cell]]:
    """(the table's section of a column, its missing runs).

    Raises:
      InputError: invalid flags, a data set of --stand_in that isn't there, or a run that can't
        begin.
    """

    def missing(cells: list[Cell]) -> list[Cell]:
        return [cell for cell in cells if cell.line.name in rows and not cell.finished()]

    complete = asked.scale == "full"
    section, cells = own(asked, column)
    todo = missing(cells)
    problem, note = trouble(todo[0].args(), complete) if todo else (None, None)
    section = replace(section, problem=problem, note=note)
    if problem and asked.stand_in and column.stand_in:
        section, cells = other(asked, column)
        todo = missing(cells)
        absent, _ = trouble(todo[0].args(), complete) if todo else (None, None)
        if absent:
            raise pfl.InputError(absent)
    todo = [] if section.problem else todo
    for cell in todo:
        cell.check()  # errors show before anything compiles
    return section, todo


def own(asked: Command, column: Column) -> tuple[Section, list[Cell]]:
    """A column on its own data set."""
    cells = list(asked.cells(column))
    return Section(column, {cell.line.name: cell.algorithm_folder for cell in cells}), cells


def other(asked: Command, column: Column) -> tuple[Section, list[Cell]]:
    """A column on the data set that stands in."""
    cells = list(asked.cells(column, asked.stand_in))
    note = f"on {asked.stand_in} instead of the paper's data set"
    folders = {cell.line.name: cell.algorithm_folder for cell in cells}
    return Section(column, folders, note=note, other_data=True), cells


def kept(asked: Command, column: Column) -> Section:
    """A column that was not requested, with its finished runs."""
    section, cells = own(asked, column)
    if asked.stand_in and not any(cell.finished() for cell in cells):
        instead, cells = other(asked, column)
        section = instead if any(cell.finished() for cell in cells) else section
    return section


def reproduce(asked: Command, columns: Sequence[str], rows: Sequence[str]) -> int:
    """Makes the runs that are missing, writes and prints; returns the exit code."""
    table = asked.table
    with_columns = [c for c in table.column if not columns or c.name in columns]
    rows = rows or [line.name for line in table.row]
    identity = {"table": table.name, "scale": asked.scale}
    args = flags.parse(["run", *asked.more])
    resume.check_folder(asked.output, args, **identity)
    planned = [plan(asked, column, rows) for column in with_columns]
    todo: dict[Path, tuple[Section, Cell]] = {}
    for section, cells in planned:
        for cell in cells:
            todo.setdefault(cell.folder, (section, cell))  # columns of one preset share their runs
    done = not todo and (asked.output / "table.md").exists()
    if todo:
        print(f"{len(todo)} runs to do, kept in {asked.output}", flush=True)
    with resume.opened(asked.output, args, **identity):
        for number, (section, cell) in enumerate(todo.values(), start=1):
            print(f"\n[{number}/{len(todo)}] {cell.line.title}: {section.title}", flush=True)
            code = run.run(build.prepare(cell.args()), quiet=True)
            if code:
                return code
        shown = [section for section, _ in planned]
        others = [kept(asked, c) for c in table.column if c not in with_columns]
        sections = sorted(shown + others, key=lambda one: table.column.index(one.column))
        report = reproduce_report.Report(table, asked.scale, asked.more, tuple(sections))
        if not done:
            reproduce_report.write(asked.output, report)
    print()
    reproduce_report.show(Console(), report, shown)
    print(f"\nTable and runs: {asked.output}")
    return 0


def catalogue(folder: Path) -> str:
    """The text of --list."""
    lines = []
    for name in tables.names(folder):
        table = tables.load(name, folder)
        here = [line.name for line in table.row if line.registered]
        lines.append(f"{name}: {table.paper}, {table.table}: {table.caption}")
        lines.append(f"  columns  {', '.join(column.name for column in table.column)}")
        lines.append(f"  rows     {', '.join(here)}")
        missing = [line.title for line in table.row if not line.registered]
        lines += [f"           not in this version: {', '.join(missing)}"] if missing else []
    return "\n".join(lines)


@shell.script(shell.GOES_ON, "with the missing runs")
def main(argv: list[str]) -> int:
    """Runs the script."""
    args, more = parse(argv)
    if args["help"].value:
        print(f"{USAGE}\n")
        print(shell.described(args, "reproduce", 9))
        print(f"\n{AFTER}")
    elif args["list"].value:
        print(catalogue(as_path("--tables", args.tables)))
    else:
        return reproduce(command(args, more), args.columns, args.rows)
    return 0
