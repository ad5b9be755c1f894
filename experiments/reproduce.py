"""Reproduction of a paper's table: `python -m experiments.reproduce --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("reproduce")

from collections.abc import Mapping, Sequence
from pathlib import Path

import absl.flags

import fedjax_pfl as pfl
from fedjax_pfl.data.files import as_path
from fedjax_pfl.utils.errors import require_name

from .cli import flags, identity, run_folder, shell
from .cli.config import ExperimentConfig
from .cli.flag_groups import Group
from .cli.parsing import FlagValues, parse_words, value_of
from .cli.start import called
from .grid.cells import Cell, run_all
from .reproduction import paper_tables, saved_cells
from .reproduction.paper_tables import READINGS, SCALES
from .reproduction.planning import Request, digest, output_folder, plan
from .reproduction.table_report import Report, markdown, write

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
    group.names("table", [], "PAPER/TABLE of --list, or several")
    meaning = "make all tables, those with the fewest runs first"
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


def requests_of(chosen: absl.flags.FlagValues, more: Sequence[str]) -> list[Request]:
    """Check the command and return the tables to make, those with the fewest runs first.

    Nothing is read or written yet. `--all` leaves out the tables that do not have the scale; of
    several tables, those without the reading are unchanged.

    Raises:
      InputError: it is not valid.
    """
    args = checked(chosen, more)
    folder = as_path("--tables", chosen.tables)
    asked, every = list(dict.fromkeys(value_of(chosen, "table"))), chosen["all"].value
    if every and asked:
        raise pfl.InputError("--all is every table: leave --table out.")
    tables = [paper_tables.load(name, folder) for name in asked or paper_tables.names(folder)]
    tables = [one for one in tables if asked or one.has_scale(chosen.scale)]
    if not tables:
        raise pfl.InputError(f"No table in {folder} has --scale={chosen.scale}.")
    if len(tables) == 1 and not every:
        _check_parts(chosen, tables[0])
        name = tables[0].name.replace("/", "-")
        root = output_folder(name, chosen.scale, args, chosen.reading)
        return [_request(chosen, more, tables[0], root)]
    for flag in ("columns", "rows"):
        if value_of(chosen, flag):
            raise pfl.InputError(f"--{flag} belongs to one table: give --table=PAPER/TABLE.")
    name = "all" if every else f"tables-{digest(sorted(asked))}"
    root = output_folder(name, chosen.scale, args, chosen.reading)
    requests = [_request(chosen, more, t, root / t.name.replace("/", "-")) for t in tables]
    return sorted(
        requests,
        key=lambda one: len({cell.folder for c in one.table.column for cell in one.cells(c)}),
    )


def _check_parts(chosen: absl.flags.FlagValues, table: paper_tables.PaperTable) -> None:
    """Raise `InputError` if a table lacks a column, a row or the reading that is asked for."""
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


def reproduce(request: Request) -> None:
    """Make the missing runs of a table, write it and print it.

    Raises:
      shell.Interrupted: a run was.
    """
    table = request.table
    facts = {"table": table.name, "scale": request.scale}
    facts |= {"reading": request.reading} if request.reading else {}
    entries = identity.run_identity(flags.parse(["run", *request.more]), facts)
    # With other rounds it is another table, which would lack the results of these.
    run_folder.check(request.output, entries, False)
    planned = [plan(request, column) for column in table.column]
    sections = tuple(section for section, _ in planned)
    todo: dict[Path, Cell] = {}
    for cell in (cell for _, cells in planned for cell in cells):
        todo.setdefault(cell.folder, cell)  # columns of one preset share their runs
    files = [request.output / f"table.{kind}" for kind in ("md", "csv", "json")]
    done = not todo and request.saved is None and all(path.exists() for path in files)
    if todo:
        print(f"{len(todo)} runs to do, kept in {request.output}", flush=True)
    with run_folder.opened(request.output, entries, False):
        saved_cells.save(request, sections)
        run_all(list(todo.values()), lambda: saved_cells.save(request, sections))
        report = Report(table, request.scale, request.more, sections, request.reading)
        if not done:
            write(request.output, report)
    print(f"\n{markdown(report)}\nTable and runs: {request.output}")


def several(requests: Sequence[Request]) -> int:
    """Make tables one after the other; return the exit code.

    A table that can't be made is named, and the others go on.
    """
    problems = []
    for number, one in enumerate(requests, start=1):
        print(f"\nTable {number} of {len(requests)}: {one.table.name}", flush=True)
        try:
            reproduce(one)
        except pfl.InputError as error:
            problems.append(f"{one.table.name} can't be made: {error}")
    print("".join(f"\n{text}" for text in problems))
    return shell.INPUT if problems else 0


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
    else:
        requests = requests_of(args, more)
        if len(requests) > 1:
            return several(requests)
        reproduce(requests[0])
    return 0
