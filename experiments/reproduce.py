"""Reproduction of a paper's table: `python -m experiments.reproduce --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("reproduce")

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import absl.flags
from rich.console import Console

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path
from fedjax_pfl.utils.errors import require_name

from . import run
from .cli import flags, identity, run_folder, shell
from .cli.config import ExperimentConfig
from .cli.flag_groups import Group
from .cli.parsing import FlagValues, parse_words, value_of
from .cli.start import called
from .reproduction import overview, paper_tables, saved_cells
from .reproduction import report as reproduce_report
from .reproduction.cells import Section
from .reproduction.paper_tables import READINGS, SCALES
from .reproduction.planning import Cell, Request, digest, finished_section, output_folder, plan

USAGE = f"""\
Run the cells of a paper's table and show the measured numbers beside the paper's.

  {called("reproduce")} --list
  {called("reproduce")} --table=pfedla/1 --scale=small --data_dir=DATA
  {called("reproduce")} --table=feddwa/1 --stand_in=fashion_mnist --data_dir=DATA
  {called("reproduce")} --all --stand_in=mnist:fashion_mnist --data_dir=DATA

Every cell is a run of {called("run")}. The same command continues a killed run and prints
finished ones."""
AFTER = f"All other flags are those of {called('run')}; the table notes their changes."


def parse(argv: Sequence[str]) -> tuple[absl.flags.FlagValues, list[str]]:
    """Return (own flags, words for `experiments.run`)."""
    values = FlagValues()
    group = Group(values, "reproduce")
    group.names("table", [], "PAPER/TABLE of --list; several make one report")
    meaning = "make all tables, those with the fewest runs first, and a report"
    group.switch("all", False, meaning)
    meaning = (
        "'small' (minutes), 'medium' (more samples, the paper's clients), 'network' (the paper's "
        "network and rates, fewer samples and rounds) or 'full' (the paper's setting)"
    )
    group.text("scale", "small", meaning)
    meaning = "'paper' or 'code', whose setting counts where they differ (default: the preset's)"
    group.text("reading", None, meaning)
    group.names("columns", [], "columns of the table (default: all)")
    group.names("rows", [], "rows of the table (default: all)")
    meaning = "data sets to use where a setting's own is missing, such as mnist:fashion_mnist"
    group.names("stand_in", [], meaning)
    meaning = "folder of the tables (default: those of this package)"
    group.text("tables", str(paper_tables.FOLDER), meaning)
    meaning = "folder of saved cells: these are not run again, and finished cells are added"
    group.text("saved_cells", None, meaning)
    group.switch("list", False, "print the tables, their settings and rows")
    group.help()
    return values, parse_words(values, argv, positional=None)[0]


@dataclass(frozen=True)
class Queue:
    """Several tables at one scale, and the folder of their report."""

    requests: tuple[Request, ...]
    output: Path
    scale: str
    reading: str | None


def request_of(chosen: absl.flags.FlagValues, more: Sequence[str]) -> Request:
    """Check the request for one table; nothing is read or written yet.

    Raises:
      InputError: it is not valid.
    """
    args = checked(chosen, more)
    (name,) = value_of(chosen, "table")
    table = paper_tables.load(name, as_path("--tables", chosen.tables))
    for flag, parts in (("columns", table.column), ("rows", table.row)):
        for name in value_of(chosen, flag):
            kind = f"name in --{flag} of {table.name}"
            require_name(kind, name, [one.name for one in parts])
    if chosen.reading is not None and chosen.reading not in table.readings(chosen.scale):
        known = f" at --scale={chosen.scale}" if chosen.reading in table.readings() else ""
        others = ", ".join(table.readings(chosen.scale))
        raise pfl.InputError(
            f"{table.name} has no --reading={chosen.reading}{known}: its settings are the same "
            f"without it{f'; it has {others}' if others else ''}."
        )
    name = table.name.replace("/", "-")
    return _request(chosen, more, table, output_folder(name, chosen.scale, args, chosen.reading))


def queue_of(chosen: absl.flags.FlagValues, more: Sequence[str]) -> Queue:
    """Check the request for several tables; those without the reading are unchanged.

    `--all` leaves out the tables that do not have the scale.

    Raises:
      InputError: it is not valid.
    """
    args = checked(chosen, more)
    folder = as_path("--tables", chosen.tables)
    tables = list(dict.fromkeys(value_of(chosen, "table")))
    for flag in ("columns", "rows"):
        if value_of(chosen, flag):
            raise pfl.InputError(f"--{flag} belongs to one table: give --table=PAPER/TABLE.")
    if chosen["all"].value and tables:
        raise pfl.InputError("--all is every table: leave --table out.")
    name = "all" if chosen["all"].value else f"tables-{digest(sorted(tables))}"
    every = (paper_tables.load(one, folder) for one in tables or paper_tables.names(folder))
    found = [one for one in every if tables or one.has_scale(chosen.scale)]
    if not found:
        raise pfl.InputError(f"No table in {folder} has --scale={chosen.scale}.")
    root = output_folder(name, chosen.scale, args, chosen.reading)
    requests = [_request(chosen, more, t, root / t.name.replace("/", "-")) for t in found]
    requests.sort(
        key=lambda one: len({cell.folder for c in one.table.column for cell in one.cells(c)})
    )
    return Queue(tuple(requests), root, chosen.scale, chosen.reading)


def checked(chosen: absl.flags.FlagValues, more: Sequence[str]) -> ExperimentConfig:
    """Return the flags for `experiments.run` after checking what tables have in common."""
    args = flags.parse(["run", *more])  # a mistyped --table would be among these
    if not value_of(chosen, "table") and not chosen["all"].value:
        raise pfl.InputError(
            "Say which table with --table=PAPER/TABLE, or --all; --list shows them."
        )
    require_name("scale", chosen.scale, SCALES)
    if chosen.reading is not None:
        require_name("reading", chosen.reading, READINGS)
    stand_ins(value_of(chosen, "stand_in"))
    for name in ("algorithms", "set"):
        if args[name].present:
            raise pfl.InputError(f"--{name} can't be given here: choose algorithms with --rows.")
    return args


def _request(chosen, more, table, output: Path) -> Request:
    """Return a table's request."""
    if not table.has_scale(chosen.scale):
        raise pfl.InputError(f"{table.name} has no --scale=network: use small, medium or full.")
    reading = chosen.reading if chosen.reading in table.readings(chosen.scale) else None
    stand_in = stand_ins(value_of(chosen, "stand_in"))
    cells = None if chosen.saved_cells is None else as_path("--saved_cells", chosen.saved_cells)
    asked = {name: tuple(value_of(chosen, name)) for name in ("columns", "rows")}
    return Request(table, chosen.scale, tuple(more), output, stand_in, reading, cells, **asked)


def stand_ins(words: Sequence[str]) -> Mapping[str, str]:
    """Return the substitute of each data set; that of "" is for any.

    Raises:
      InputError: an unknown data set, none, or two for one.
    """
    result: dict[str, str] = {}
    for word in words:
        missing, _, name = word.rpartition(":")
        if not name:
            raise pfl.InputError(f"--stand_in={word} doesn't say what to use: write MISSING:OTHER.")
        for one in filter(None, (missing, name)):
            require_name("data set", one, pfl.data.DATASETS)
        if missing in result:
            raise pfl.InputError(f"--stand_in names two data sets for {missing or 'all'}.")
        result[missing] = name
    return result


def reproduce(request: Request) -> tuple[int, reproduce_report.Report | None, list[Section]]:
    """Make the missing runs and write the table.

    Returns:
      (exit code, the table, its requested sections); no table where a run was interrupted.
    """
    table = request.table
    with_columns = [c for c in table.column if not request.columns or c.name in request.columns]
    args = flags.parse(["run", *request.more])
    entries, accept = _identity(args, request, table=table.name), args.accept_changed_code
    # With other rounds it is another table, which would lack the results that are set aside.
    run_folder.check(request.output, entries, (), accept)
    planned = [plan(request, column) for column in with_columns]
    shown = [section for section, _ in planned]
    todo: dict[Path, tuple[Section, Cell]] = {}
    for section, cells in planned:
        for cell in cells:
            todo.setdefault(cell.folder, (section, cell))  # columns of one preset share their runs
    files = [request.output / f"table.{kind}" for kind in ("md", "csv", "json")]
    done = not todo and request.saved is None and all(path.exists() for path in files)
    if todo:
        print(f"{len(todo)} runs to do, kept in {request.output}", flush=True)
    with run_folder.opened(request.output, entries, (), accept):
        saved_cells.save(request, shown)
        for number, (section, cell) in enumerate(todo.values(), start=1):
            print(f"\n[{number}/{len(todo)}] {cell.line.title}: {section.title}", flush=True)
            code = run.run(cell.experiment(), quiet=True)
            if code:
                return code, None, []
            saved_cells.save(request, shown)
        others = [finished_section(request, c) for c in table.column if c not in with_columns]
        sections = sorted(shown + others, key=lambda one: table.column.index(one.column))
        report = reproduce_report.Report(
            table, request.scale, request.more, tuple(sections), request.reading
        )
        if not done:
            reproduce_report.write(request.output, report)
            overview.write_table_picture(request.output, report)
    return 0, report, shown


def _identity(args: ExperimentConfig, request: Request | Queue, **facts: Any) -> dict[str, Any]:
    """Return the identity of a table's folder, or of a queue's."""
    facts |= {"scale": request.scale} | ({"reading": request.reading} if request.reading else {})
    return identity.run_identity(args, facts)


def one_table(request: Request) -> int:
    """Make and print one table; return the exit code."""
    code, report, shown = reproduce(request)
    if report is not None:
        print()
        reproduce_report.show(Console(), report, shown)
        print(f"\nTable and runs: {request.output}")
    return code


def several(queue: Queue) -> int:
    """Make all tables of a queue, updating their report after each; return the exit code.

    The report names a table that can't be made, and the others go on.
    """
    args = flags.parse(["run", *queue.requests[0].more])
    names = sorted(one.table.name for one in queue.requests)
    entries, accept = _identity(args, queue, tables=names), args.accept_changed_code
    run_folder.check(queue.output, entries, (), accept)
    tables = [one.table for one in queue.requests]
    parts = {table.name: overview.Part(table.name, table.caption) for table in tables}
    title = f"The papers' tables again, {queue.scale} scale"
    if queue.reading:
        without = [one.table.name for one in queue.requests if one.reading is None]
        title += f", as the {queue.reading} has it"
        title += f" (no such reading: {', '.join(without)})" if without else ""
    with run_folder.opened(queue.output, entries, (), accept):
        for number, one in enumerate(queue.requests, start=1):
            name = one.table.name
            print(f"\nTable {number} of {len(parts)}: {name}", flush=True)
            try:
                code, report, _ = reproduce(one)
            except pfl.InputError as error:
                print(f"{name} can't be made: {error}", flush=True)
                parts[name] = replace(parts[name], state=f"not made: {error}")
                code, report = 0, None
            if report is not None:
                parts[name] = overview.Part.finished(one, report)
            overview.write(queue.output, title, list(parts.values()))
            if code:
                return code
    print(f"\nReport, tables and runs: {queue.output}")
    return 2 if any(part.state.startswith("not made") for part in parts.values()) else 0


def catalogue(folder: Path) -> str:
    """Return the text of --list."""
    lines = []
    for name in paper_tables.names(folder):
        table = paper_tables.load(name, folder)
        here = [line.name for line in table.row if line.registered]
        lines.append(f"{name}: {table.paper}, {table.table}: {table.caption}")
        lines.append(f"  columns  {', '.join(column.name for column in table.column)}")
        lines.append(f"  rows     {', '.join(here)}")
        readings = table.readings()
        lines += [f"  readings {', '.join(readings)}"] if readings else []
        missing = [line.title for line in table.row if not line.registered]
        lines += [f"           not in this version: {', '.join(missing)}"] if missing else []
    return "\n".join(lines)


@shell.script(shell.GOES_ON, "with the missing runs")
def main(argv: list[str]) -> int:
    """Run the command."""
    args, more = parse(argv)
    if args["help"].value:
        print(f"{USAGE}\n\n{args.module_help('reproduce')}\n\n{AFTER}")
    elif args["list"].value:
        print(catalogue(as_path("--tables", args.tables)))
    elif args["all"].value or len(args.table) > 1:
        return several(queue_of(args, more))
    else:
        return one_table(request_of(args, more))
    return 0
