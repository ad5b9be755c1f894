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
LABELS = ("Algorithm", "Network", "on")  # headings of what tells rows apart
BY_ALGORITHM, BY_NETWORK = ("Algorithm",), ("Network", "Algorithm", "on")  # of either table
FACTS = (
    "memory GB", "local steps", "step Mcycles", "of its floor",
    "evaluation Mcycles", "rest Mcycles", "rounds/s",
)  # fmt: skip

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


Cells = dict[tuple[str, ...], dict[str, str]]  # text by heading, by the labels of the row


def read(page: str, labels: Sequence[str]) -> Cells:
    """Return the cells of a page's table with these columns of labels."""
    found: Cells = {}
    heads: list[str] = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = cells
        elif [head for head in heads if head in LABELS] == list(labels):
            row = dict(zip(heads, cells, strict=False))
            found[tuple(row.pop(label) for label in labels)] = row
    return found


def markdown(
    labels: Sequence[str],
    numbers: Sequence[str],
    words: Sequence[str],
    rows: Iterable[tuple[str, ...]],
    cells: Cells,
) -> str:
    """Format the rows without empty rows, columns and tables.

    Args:
      labels: headings of the columns that tell rows apart.
      numbers, words: the other headings, whose cells stand right and left.
    """
    lines = []
    for row in rows:
        known = {head: cells.get(row, {}).get(head, UNKNOWN) for head in (*numbers, *words)}
        known = {head: text for head, text in known.items() if text != UNKNOWN}
        lines += [dict(zip(labels, row, strict=True)) | known] if known else []
    columns = [Column(one, one, left=one not in numbers) for one in (*labels, *numbers, *words)]
    return Table(columns, lines).to_markdown() if lines else ""


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
    small, large = read(page, BY_ALGORITHM), read(page, BY_NETWORK)
    for case in cases:
        plan = found.get(case.name)
        if plan is None:
            continue
        if case.size == SMALL:
            small.setdefault((f"`{case.algorithm}`",), {}).update(_small(case.target, plan))
        else:
            large[case.size, f"`{case.algorithm}`", case.target] = _large(plan)
    seconds = [f"{target}, s" for target in targets]
    transfers = [f"transfers, {target}" for target in targets if ":" in target]
    rows = [(one.size, f"`{one.algorithm}`", one.target) for one in cases if one.size != SMALL]
    parts = (
        markdown(BY_ALGORITHM, seconds, transfers, [(f"`{name}`",) for name in names], small),
        markdown(BY_NETWORK, FACTS, [], rows, large),
    )
    return "\n\n".join(filter(None, parts))


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
