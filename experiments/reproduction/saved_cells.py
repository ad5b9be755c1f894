"""Cells of a paper's table in a small file, so that several machines can measure it.

FOLDER/PAPER-TABLE.json (PAPER-TABLE-SCALE.json of another scale than small) has under "kept" one
line for each cell, "COLUMN/ROW": the scores by seed, the rows of the clients averaged, the run's
remarks, the revisions of engine and algorithm, and a digest of all that identifies the run and its
score. A cell is valid while this digest is current. Times of a round are not saved, because
machines differ.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.data.files import read_json

from ..cli import identity
from ..outputs.run_files import plain, write_text
from .paper_tables import SCALES
from .table_cells import ColumnRuns, measured

if TYPE_CHECKING:
    from .planning import Request

CELLS = "kept"


def page_of(table: str, scale: str) -> str:
    """Return a page's name: small tables are PAPER-TABLE, others name their scale."""
    table = table.replace("/", "-")
    return table if scale == SCALES[0] else f"{table}-{scale}"


def as_text(facts: Mapping[str, Any]) -> str:
    """Format a file: other facts first, then a line per cell, sorted."""
    text = json.dumps({name: facts[name] for name in facts if name != CELLS}, indent=2)
    cells = sorted(facts.get(CELLS, {}).items())
    if not cells:
        return text + "\n"
    lines = (f"    {json.dumps(name)}: {json.dumps(cell, sort_keys=True)}" for name, cell in cells)
    return f'{text[:-2]},\n  "{CELLS}": {{\n' + ",\n".join(lines) + "\n  }\n}\n"


def _file(request: "Request") -> Path:
    return (request.saved or Path()) / f"{page_of(request.table.name, request.scale)}.json"


def load(request: "Request") -> dict[str, Any]:
    """Read a table's file; without one there are no cells.

    Raises:
      InputError: the file is damaged, or of another reading.
    """
    path = _file(request)
    facts = {"table": request.table.name, "scale": request.scale, "reading": request.reading}
    facts |= read_json(path) if path.exists() else {}
    if facts["reading"] != request.reading:
        raise pfl.InputError(
            f"{path} keeps cells of the reading {facts['reading'] or 'of the presets'}: give "
            "another folder as --saved_cells."
        )
    return facts


def current(facts: Mapping[str, Any], section: ColumnRuns) -> dict[str, dict[str, Any]]:
    """Return a column's saved cells by row whose run is current."""
    cells = {row: facts.get(CELLS, {}).get(f"{section.column.name}/{row}") for row in section.runs}
    return {row: one for row, one in cells.items() if one and one["run"] == section.runs[row]}


def save(request: "Request", sections: Sequence[ColumnRuns]) -> None:
    """Add finished cells to the table's file, if the command has a folder of them."""
    if request.saved is None:
        return
    facts, new, table = load(request), {}, request.table
    for section in sections:
        known = current(facts, section)
        for line in table.row if section.column.quantity != "seconds" else ():
            run, place = section.runs.get(line.name), section.folders.get(line.name)
            if run is None or place is None or line.name in known:
                continue
            if (place / "summary.json").exists():
                cell = measured(table, section.column, line, place)
                seeds = [str(seed) for seed in read_json(place / "config.json")["seeds"]]
                scores = dict(zip(seeds, np.asarray(cell.pop("scores"), float), strict=True))
                cell = {name: value for name, value in cell.items() if value or name == "remarks"}
                new[f"{section.column.name}/{line.name}"] = plain({
                    "run": run, "revision": identity.revision(pfl.core.ALGORITHMS[line.algorithm]),
                    "scores": scores, **cell,
                })  # fmt: skip
    if new:
        request.saved.mkdir(parents=True, exist_ok=True)
        facts[CELLS] = {**facts.get(CELLS, {}), **new}
        write_text(_file(request), as_text(facts))
