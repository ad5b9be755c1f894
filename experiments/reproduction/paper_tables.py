"""The papers' tables as files: each cell's run, and the paper's number for it.

One file for each table, `experiments/tables/PAPER/TABLE.toml`:

  paper, table, caption   its description; the source is in a comment on top
  score, average          which accuracy the paper prints, see `experiments.figures.scores`
  over                    "next_participants" where only they are scored, as there (default: "all")
  printed                 false where the paper shows the numbers only in a picture
  flags                   of `experiments.run`, for all cells
  small, medium           further ones for --scale=small and medium (default: `MEDIUM`)
  network                 further ones for --scale=network: the paper's network, clients, rates and
                          epochs at a fraction of its compute; without them there is no such scale
  stand_in                further ones where another data set is used
  absent                  algorithms of the paper that may be missing here
  tuned_for_agreement     a sentence on what small and medium were chosen for so that the order is
                          the paper's; it goes with the verdict
  reading                 paper and code, where they differ: see `Reading`
  [[column]]              name, title, preset (all flags but the algorithms); perhaps small, medium
                          (default: those of small), small_preset (instead of preset), settings
                          (--set), model, average, reading, stand_in = true where another data set
                          makes sense instead, and values: words for {NAME} in the rows' flags and
                          settings; of a cost also quantity (`quantities`), times (a factor) and
                          relative (the row that all numbers are divided by)
  [[row]]                 title, algorithm; perhaps settings, flags, model (a score other than the
                          column's), client (only its score), over (other than above), reading;
                          paper = [a number for each column], std = [its printed deviations]; nan
                          where there is none. Rows of equal algorithm, settings and flags are
                          scores of one run. reduced are further settings at --scale=small and
                          medium. A row with
                          beside = true is none of the paper's, another reading beside one for
                          instance: it has no numbers, and is run in every column.
  [[explain]]             by (a name), text (a sentence), perhaps rows and columns: what is known to
                          move cells away from the paper's numbers; ours = "below" or "above" where
                          it moves them only so
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.utils.errors import require_name

from ..cli import presets
from ..figures.scores import AVERAGES, OVER, SCORES
from .quantities import ACCURACY, QUANTITIES, Quantity
from .table_files import needs, read

FOLDER = Path(__file__).parents[1] / "tables"
SCALES = ("small", "medium", "network", "full")
REDUCED = ("small", "medium")  # with another network and other rates than the paper's
READINGS = ("paper", "code")
# Rounds and sizes at which the order of forty algorithms hardly depends on the seed: between the
# orders of two seeds Kendall's tau is 0.79 to 0.89. Rows that lie close together still
# change places.
MEDIUM = (
    "--model=mlp",
    "--rounds=20",
    "--eval_every=4",
    "--local_epochs=2",
    "--batch_size=20",
    "--learning_rate=0.1",
    "--train_samples=300",
    "--num_seeds=3",
)


@dataclass(frozen=True)
class Reading:
    """Changes by --reading to a table, a column or a row.

    Attributes:
      text: the difference in words.
      preset: of a column, instead of its own.
      flags: of `experiments.run`.
      settings: hyperparameters, as for --set.
    """

    text: str = ""
    preset: str | None = None
    flags: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


NONE = Reading()


@dataclass(frozen=True)
class Explanation:
    """A known cause of differences; without rows or columns, in all of them.

    `ours` is where it puts our numbers, "below" or "above" the paper's; "" is either.
    """

    by: str
    text: str
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    ours: str = ""


@dataclass(frozen=True)
class Column:
    """A setting of a table: data set, partition, network; and which accuracy it has."""

    name: str
    title: str
    preset: str
    small: tuple[str, ...] = ()
    medium: tuple[str, ...] | None = None
    small_preset: str | None = None
    settings: tuple[str, ...] = ()
    model: str = "personalized"
    average: str | None = None
    stand_in: bool = False
    quantity: str = ACCURACY
    times: float = 1.0
    relative: str | None = None
    values: Mapping[str, str | float] = field(default_factory=dict, hash=False)
    reading: Mapping[str, Reading] = field(default_factory=dict, hash=False)

    @property
    def measure(self) -> Quantity:
        return QUANTITIES[self.quantity]

    def preset_of(self, scale: str = "full", reading: str | None = None) -> str:
        chosen = self.reading.get(reading or "", NONE).preset or self.preset
        return (self.small_preset or chosen) if scale in REDUCED else chosen

    def changes(self, scale: str) -> tuple[str, ...]:
        """Return the further flags of this column at that scale."""
        medium = self.small if self.medium is None else self.medium
        return {"small": self.small, "medium": medium}.get(scale, ())


@dataclass(frozen=True)
class Line:
    """A row: an algorithm with the paper's settings, and its number for each column."""

    title: str
    algorithm: str
    paper: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    settings: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    model: str | None = None
    client: int | None = None
    over: str | None = None
    beside: bool = False
    reading: Mapping[str, Reading] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Its name in folders and --rows."""
        return re.sub(r"\W+", "_", self.title.lower()).strip("_")

    @property
    def registered(self) -> bool:
        return self.algorithm in pfl.core.ALGORITHMS

    @property
    def run_key(self) -> tuple:
        """Equal for rows that are scores of one run."""
        return self.algorithm, self.settings, self.reduced, self.flags, dict(self.reading)


@dataclass(frozen=True)
class PaperTable:
    """A paper's table; its fields are those of the file, see above."""

    name: str
    paper: str
    table: str
    caption: str
    score: str
    average: str
    column: tuple[Column, ...]
    row: tuple[Line, ...]
    over: str = "all"
    flags: tuple[str, ...] = ()
    printed: bool = True
    small: tuple[str, ...] = ()
    medium: tuple[str, ...] = MEDIUM
    network: tuple[str, ...] = ()
    stand_in: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    tuned_for_agreement: str = ""
    reading: Mapping[str, Reading] = field(default_factory=dict, hash=False)
    explain: tuple[Explanation, ...] = ()

    def line(self, name: str) -> Line:
        """Return the row of that name."""
        return next(one for one in self.row if one.name == name)

    def paper_number(self, line: Line, column: Column) -> tuple[float | None, float | None]:
        """Return (mean, deviation) as printed, None where there is none."""
        if line.beside:
            return None, None
        at = self.column.index(column)
        return _known(line.paper[at]), _known(line.std[at]) if line.std else None

    def over_of(self, line: Line) -> str:
        """Return which clients' scores a row has."""
        return line.over or self.over

    def has_run(self, line: Line, column: Column) -> bool:
        """Return whether the cell has a run: a number of the paper or of ours, and an algorithm."""
        printed = self.paper_number(line, column)[0] is not None
        return line.registered and (line.beside or not self.printed or printed)

    def run_row(self, line: Line) -> Line:
        """Return the first row whose run has this row's score."""
        return next(one for one in self.row if one.run_key == line.run_key)

    def row_changes(self, scale: str) -> dict[str, tuple[str, ...]]:
        """Return the further settings of single rows at that scale, by their titles."""
        return {line.title: line.reduced for line in self.row if line.reduced and scale in REDUCED}

    def changes(self, scale: str) -> tuple[str, ...]:
        """Return the further flags of all cells at that scale."""
        every = {"small": self.small, "medium": self.medium, "network": self.network}
        return every.get(scale, ())

    def has_scale(self, scale: str) -> bool:
        """Return whether the table has flags for a scale."""
        return scale != "network" or bool(self.network)

    def readings(self, scale: str = "full") -> list[str]:
        """Return the readings that change something at a scale, for a part of the table."""
        return [name for name in READINGS if any(self._read(name, scale))]

    def differences(self, reading: str, scale: str = "full") -> list[str]:
        """Describe a reading's differences at a scale."""
        return list(dict.fromkeys(one.text for one in self._read(reading, scale) if one.text))

    def _read(self, reading: str, scale: str) -> Iterator[Reading]:
        """Yield a reading's parts, without those that the scale's own flags override."""
        for part in (self, *self.column, *self.row):
            own = part.changes(scale) if isinstance(part, Column) else ()
            later = {word.partition("=")[0] for word in (*self.changes(scale), *own)}
            one = part.reading.get(reading, NONE)
            replaced = bool(one.flags) and {w.partition("=")[0] for w in one.flags} <= later
            if reading in part.reading and not (replaced and not one.preset and not one.settings):
                yield one

    def explanations(self, line: Line, column: Column, ours: str) -> list[str]:
        """Return the names of known causes of a cell "below" or "above" the paper's number."""
        return [
            one.by
            for one in self.explain
            if (not one.rows or line.name in one.rows)
            and (not one.columns or column.name in one.columns)
            and one.ours in ("", ours)
        ]


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of all tables, such as "feddwa/1".

    Raises:
      InputError: there is none.
    """
    result = sorted(
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.glob("*/*.toml")
    )
    if not result:
        raise pfl.InputError(f"{folder} has no tables: it needs PAPER/TABLE.toml.")
    return result


def load(name: str, folder: Path = FOLDER) -> PaperTable:
    """Read and check one table.

    Raises:
      InputError: no such table, or a file of the wrong form.
    """
    require_name("table", name, names(folder))
    path = folder / f"{name}.toml"
    table = read(PaperTable, path, name=name)
    check(table, path)
    return table


def check(table: PaperTable, path: Path) -> None:
    """Raise `InputError` if parts of a table don't match each other or this version."""
    need = needs(path)
    for kind, parts in (("column", table.column), ("row", table.row)):
        own = [one.name for one in parts]
        need(len(set(own)) == len(own) > 0, f"its {kind}s need different names, got {own}")
    need(table.score in SCORES, f"score must be one of {', '.join(SCORES)}")
    for one in {table.over, *map(table.over_of, table.row)}:
        need(one in OVER, f"over must be one of {', '.join(OVER)}, got {one!r}")
    for average in (table.average, *(c.average or table.average for c in table.column)):
        need(average in AVERAGES, f"average must be one of {', '.join(AVERAGES)}, got {average!r}")
    parts = (table, *table.column, *table.row)
    readings = [(name, one) for part in parts for name, one in part.reading.items()]
    for name, _ in readings:
        need(name in READINGS, f"a reading must be one of {', '.join(READINGS)}, got {name!r}")
    chosen = {c.preset_of(s, r) for c in table.column for s in SCALES for r in (None, *READINGS)}
    for preset in chosen:
        need(preset in presets.names(), f"no preset {preset!r}")
    for line in table.row:
        known = line.registered or line.algorithm in table.absent
        need(known, f"algorithm {line.algorithm!r} is neither registered nor among absent")
        settings = [*line.settings, *line.reduced]
        settings += [word for one in line.reading.values() for word in one.settings]
        for word in settings:
            text = f"row {line.title!r} has the setting {word!r}: write {line.algorithm}.NAME=VALUE"
            need(word.startswith(f"{line.algorithm}."), text)
        for numbers in (line.paper, line.std or line.paper):
            count = 0 if line.beside else len(table.column)
            fits = len(numbers) == count and all(map(_possible, table.column, numbers))
            what = "percentages" if {c.quantity for c in table.column} == {ACCURACY} else "numbers"
            need(fits, f"row {line.title!r} needs {count} {what}, got {list(numbers)}")
    for column in table.column:
        _check_column(table, column, need)
    for one in table.explain:
        unknown = {*one.rows} - {part.name for part in table.row}
        unknown |= {*one.columns} - {part.name for part in table.column}
        need(not unknown, f"{one.by!r} explains cells of {sorted(unknown)}, which aren't there")
        text = f"{one.by!r} puts ours 'below' or 'above', got {one.ours!r}"
        need(one.ours in ("", "below", "above"), text)


def _possible(column: Column, number: float) -> bool:
    return math.isnan(number) or 0 <= number <= (100 if column.quantity == ACCURACY else math.inf)


def _check_column(table: PaperTable, column: Column, need: Callable[[bool, str], None]) -> None:
    known = ", ".join(QUANTITIES)
    text = f"quantity must be one of {known}, got {column.quantity!r}"
    need(column.quantity in QUANTITIES, text)
    rows = {line.name for line in table.row}
    need(column.relative is None or column.relative in rows, f"no row {column.relative!r}")
    for line in table.row:
        for word in (*line.flags, *line.settings):
            for name in re.findall(r"{(\w+)}", word) if table.has_run(line, column) else ():
                need(name in column.values, f"column {column.name!r} has no value {name!r}")
    for other in table.column:  # they share the folders of their runs
        if other.preset == column.preset:
            alike = all(other.changes(s) == column.changes(s) for s in SCALES)
            alike &= (other.settings, other.values) == (column.settings, column.values)
            need(alike, f"columns {column.name!r} and {other.name!r} differ in runs of one preset")
