"""The papers' tables as files: each cell's run, and the paper's number for it.

One file for each table, `experiments/tables/PAPER/TABLE.toml`:

  paper, table, caption   its description; the source is in a comment on top
  score, average          which accuracy the paper prints, see `experiments.figures.scores`
  flags                   of `experiments.run`, for all cells
  small                   further ones for --scale=small
  stand_in                further ones where another data set is used
  absent                  algorithms of the paper that may be missing here
  [[column]]              name, title, preset (all flags but the algorithms); perhaps small,
                          small_preset (instead of preset), settings (--set), model, average, and
                          stand_in = true where another data set makes sense instead
  [[row]]                 title, algorithm; perhaps settings, flags; paper = [a number for each
                          column] in percent, std = [its printed deviations]; nan where there is
                          none
"""

import math
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import fedjax_pfl as pfl

from ..cli import presets
from ..cli.flagfiles import runs_code
from ..figures.scores import AVERAGES, SCORES

FOLDER = Path(__file__).parents[1] / "tables"


@dataclass(frozen=True)
class Column:
    """A setting of a table: data set, partition, network; and which accuracy it has."""

    name: str
    title: str
    preset: str
    small: tuple[str, ...] = ()
    small_preset: str | None = None
    settings: tuple[str, ...] = ()
    model: str = "personalized"
    average: str | None = None
    stand_in: bool = False

    def preset_of(self, small: bool = False) -> str:
        return (small and self.small_preset) or self.preset


@dataclass(frozen=True)
class Line:
    """A row: an algorithm with the paper's settings, and its number for each column."""

    title: str
    algorithm: str
    paper: tuple[float, ...]
    std: tuple[float, ...] = ()
    settings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in folders and --rows."""
        return re.sub(r"\W+", "_", self.title.lower()).strip("_")

    @property
    def registered(self) -> bool:
        return self.algorithm in pfl.ALGORITHMS


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
    flags: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    stand_in: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()

    def paper_number(self, line: Line, column: Column) -> tuple[float | None, float | None]:
        """(mean, deviation) as printed, None where there is none."""
        at = self.column.index(column)
        return _known(line.paper[at]), _known(line.std[at]) if line.std else None


def _known(number: float) -> float | None:
    return None if math.isnan(number) else number


def names(folder: Path | None = None) -> list[str]:
    """All tables, such as "feddwa/1"."""
    folder = FOLDER if folder is None else folder
    return sorted(path.relative_to(folder).with_suffix("").as_posix()
                  for path in folder.glob("*/*.toml"))  # fmt: skip


def load(name: str, folder: Path | None = None) -> PaperTable:
    """Reads and checks one table.

    Raises:
      InputError: no such table, or a file of the wrong form.
    """
    folder = FOLDER if folder is None else folder
    known = names(folder)
    if name not in known:
        raise pfl.unknown_name("table", name, known)
    path = folder / f"{name}.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        columns = tuple(_made(Column, one) for one in content.pop("column"))
        lines = tuple(_made(Line, one) for one in content.pop("row"))
        content |= {"name": name, "column": columns, "row": lines}
        table = _made(PaperTable, content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise pfl.InputError(f"{path} can't be read as a table: {error}") from error
    check(table, path)
    return table


def _made(kind: type, content: dict[str, Any]) -> Any:
    unknown = sorted(content.keys() - {field.name for field in fields(kind)})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in content.items()})


def check(table: PaperTable, path: Path) -> None:
    """Raises `InputError` where the parts of a table don't match each other or this version."""

    def need(condition: bool, said: str) -> None:
        if not condition:
            raise pfl.InputError(f"{path}: {said}.")

    for kind, found in (("column", table.column), ("row", table.row)):
        seen = [one.name for one in found]
        need(len(set(seen)) == len(seen) > 0, f"its {kind}s need different names, got {seen}")
    need(table.score in SCORES, f"score must be one of {', '.join(SCORES)}")
    for average in (table.average, *(c.average or table.average for c in table.column)):
        need(average in AVERAGES, f"average must be one of {', '.join(AVERAGES)}, got {average!r}")
    for preset in {column.preset_of(small) for column in table.column for small in (False, True)}:
        need(preset in presets.names(), f"no preset {preset!r}")
    words = [*table.flags, *table.small, *table.stand_in]
    words += [word for line in table.row for word in line.flags]
    words += [word for column in table.column for word in column.small]
    for word in filter(runs_code, words):
        need(False, f"its flags have {word}, and a table runs no code: give it on the command line")
    for line in table.row:
        known = line.registered or line.algorithm in table.absent
        need(known, f"algorithm {line.algorithm!r} is neither registered nor among absent")
        for numbers in (line.paper, line.std or line.paper):
            count = len(table.column)
            fits = len(numbers) == count and all(math.isnan(n) or 0 <= n <= 100 for n in numbers)
            need(fits, f"row {line.title!r} needs {count} percentages, got {list(numbers)}")
