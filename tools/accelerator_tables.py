"""Tables of programs compiled for accelerators, and their insertion into a page.

A table is written over the one that stands there: what was not compiled this time stays as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import fedjax_pfl as pfl
from fedjax_pfl.results.table import Column, Table

MARKS = ("<!-- accelerators -->\n", "\n<!-- end of accelerators -->")
SMALL = "small"  # the case of every algorithm
UNKNOWN = "-"
LABELS = ("Algorithm", "Network", "on")  # heads of what tells rows apart

Plain = Mapping[str, Any]  # a plan in JSON's types


class Case(NamedTuple):
    """An algorithm's program for a target.

    Attributes:
      size: `SMALL`, or what clients have which network.
    """

    size: str
    target: str
    algorithm: str

    @property
    def name(self) -> str:
        return f"{self.size}/{self.target.replace(':', '-')}/{self.algorithm}"


class PageTable:
    """Rows of cells by labels and headings; missing cells are `UNKNOWN`.

    Args:
      labels: heads of the columns that tell rows apart.
      numbers, words: the other heads, whose cells stand right and left.
      rows: labels of all rows that it may have, in order.
    """

    def __init__(
        self,
        labels: Sequence[str],
        numbers: Sequence[str],
        words: Sequence[str],
        rows: Iterable[tuple[str, ...]],
    ):
        self.labels, self.numbers, self.words = tuple(labels), tuple(numbers), tuple(words)
        self.rows = {row: dict[str, str]() for row in rows}

    def add(self, row: tuple[str, ...], cells: Mapping[str, str]) -> None:
        """Write cells, replacing existing ones; unknown rows are ignored."""
        mine = self.rows.get(row, {})
        for head in (*self.numbers, *self.words):
            if cells.get(head) == UNKNOWN:
                mine.pop(head, None)
            elif head in cells:
                mine[head] = cells[head]

    def read(self, text: str) -> None:
        """Add the rows of a page's table with the same label columns."""
        heads: list[str] = []
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if not line.startswith("|"):
                heads = []
            elif not heads:
                heads = cells
            elif tuple(head for head in heads if head in LABELS) == self.labels:
                row = dict(zip(heads, cells, strict=False))
                self.add(tuple(row.pop(label) for label in self.labels), row)

    def to_markdown(self) -> str:
        """Format as Markdown without empty rows, columns and tables."""
        rows = [{**dict(zip(self.labels, row, strict=True)), **cells}
                for row, cells in self.rows.items() if cells]  # fmt: skip
        left = [*self.labels, *self.words]
        heads = (*self.labels, *self.numbers, *self.words)
        columns = [Column(head, head, left=head in left) for head in heads]
        return Table(columns, rows).to_markdown() if rows else ""


def tables(cases: Sequence[Case], found: Mapping[str, Plain], page: str = "") -> str:
    """Return all tables of a page, with its previous cells where nothing was compiled.

    First seconds and transfers of the small cases, then memory and cycles of the others.

    Args:
      cases: that there are, in order.
      found: plans by a case's name.
      page: text with the tables of before.
    """
    targets = list(dict.fromkeys(case.target for case in cases))
    names = sorted({case.algorithm for case in cases if case.size == SMALL})
    small = PageTable(
        ["Algorithm"],
        [f"{target}, s" for target in targets],
        [f"transfers, {target}" for target in targets if ":" in target],
        [(f"`{name}`",) for name in names],
    )
    large = PageTable(
        ["Network", "Algorithm", "on"],
        ["memory GB", "of it estimated", "local steps", "step Mcycles", "of its floor",
         "evaluation Mcycles", "rest Mcycles", "rounds/s"],
        [],
        [(case.size, f"`{case.algorithm}`", case.target) for case in cases if case.size != SMALL],
    )  # fmt: skip
    for table in (small, large):
        table.read(page)
    for case in cases:
        plan = found.get(case.name)
        if plan is None:
            continue
        if case.size == SMALL:
            small.add((f"`{case.algorithm}`",), _small(case.target, plan))
        else:
            row = (case.size, f"`{case.algorithm}`", case.target)
            large.rows[row].clear()
            large.add(row, _large(plan))
    return "\n\n".join(filter(None, (small.to_markdown(), large.to_markdown())))


def _small(target: str, plan: Plain) -> dict[str, str]:
    """Return compile time and the transfers of a round."""
    seconds = plan["trace_seconds"] + plan["compile_seconds"]
    kinds = plan["costs"]["transfers"] if plan["costs"] else {}
    transfers = ", ".join(f"{n:g} {kind}" for kind, (n, _) in kinds.items())
    return {
        f"{target}, s": "fails" if plan["error"] else f"{seconds:.0f}",
        f"transfers, {target}": transfers or UNKNOWN,
    }


def _large(plan: Plain) -> dict[str, str]:
    """Return memory and cycles."""
    if not plan["planned"] or plan["costs"] is None:
        return {"memory GB": "fails"}
    costs, total = plan["costs"], plan["planned"]["total"]
    cells = {
        "memory GB": f"{total / 1e9:.3f}",
        "of it estimated": f"{plan['estimated'] / total:.2f}" if plan["estimated"] else UNKNOWN,
        "local steps": f"{costs['steps']:.0f}",
    }
    if not plan["rounds_per_second"]:
        return cells
    for part in ("step", "evaluation", "rest"):
        cells[f"{part} Mcycles"] = f"{costs[part] / 1e6:.2f}"
    if plan["step_floor"]:
        cells["of its floor"] = f"{costs['step'] / plan['step_floor']:.1f}"
    return cells | {"rounds/s": f"{plan['rounds_per_second']:.1f}"}


def filled(page: str, cases: Sequence[Case], found: Mapping[str, Plain]) -> str:
    """Return a page with new tables between its marks.

    Raises:
      InputError: it has no marks.
    """
    head, first, rest = page.partition(MARKS[0])
    before, last, tail = rest.partition(MARKS[1])
    if not last:
        raise pfl.InputError(f"The page has no marks {MARKS[0].strip()}, {MARKS[1].strip()}.")
    return head + first + tables(cases, found, before) + last + tail
