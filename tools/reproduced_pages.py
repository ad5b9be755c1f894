"""Pages of reproduced tables: `python -m tools.reproduced_pages docs/reproduced QUEUE...`.

Copies the tables of queues (`experiments.reproduce --all` or `--table=A,B`, or a folder of single
tables, each in PAPER-TABLE) into a folder of the documentation, one page and picture each (of
another scale than small as PAPER-TABLE-SCALE), and writes the index of all pages there. A table
without a measured cell gets no page. Places on this machine are written as DATA. With --costs what
all tables cost at full scale is counted anew, which takes minutes.

Rows that were measured before a default or a reading changed are named in the page's JSON file,
"superseded": [{"row": TITLE, "since": VERSION, "columns": [NAME, ...]}] (all columns without the
last). Each call, also without queues, marks them in the page; a page that is copied again has none.
With --superseded they are listed instead, with the least that they cost and the command that runs
them.

Cells in a page's JSON file (`experiments.reproduce --saved_cells=docs/reproduced`) stay there. A
page is not replaced by one with fewer measured cells.
"""

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

from experiments.cli import shell
from experiments.outputs.run_files import write_text
from experiments.reproduction import paper_tables, planning
from experiments.reproduction.paper_tables import SCALES
from experiments.reproduction.picture import PICTURE
from experiments.reproduction.saved_cells import CELLS, as_text, page_of
from experiments.reproduction.table_cells import NEAR, NO_NUMBER
from fedjax_pfl.results.table import Table
from tools import arguments, full_cost
from tools.full_cost import MACHINES, RATES

INDEX, COSTS = "README.md", "costs.csv"
SAID = ("table", "scale", "reading", "title", "verdict", "tuned_for_agreement")
INTRODUCTION = """# Reproduced tables of the papers

[The papers' tables again](../reproduce.md), as far as they have been run, each with its verdict:
how the order of the rows agrees with the paper's, and, where numbers can be compared, how near they
are. Each page names its scale and data set: at another scale than full,
or on other data, only the order means something. "Told apart" are the pairs of rows whose 95 %
intervals do not overlap: tau claims no more than these. "Tuned": a free parameter was chosen so
that the order agrees. "Superseded": rows that were measured at the default or reading of an earlier
version, which the page marks beside their names."""


def table_of(page: Path) -> dict:
    """Return the index entry of a page, from the file beside it."""
    return json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))


def copy(queue: Path, docs: Path) -> list[str]:
    """Copy a queue's tables; return the names of the pages."""
    written = []
    for path in sorted(queue.glob("*/table.json")):
        with (path.parent / "table.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        count = sum(row["state"] == "measured" for row in rows)
        if not count:
            continue
        summary = json.loads(path.read_text(encoding="utf-8"))
        name = page_of(path.parent.name, summary["scale"])
        before = table_of(docs / f"{name}.md") if (docs / f"{name}.json").exists() else {}
        if before.get("measured", 0) > count:
            print(f"{name} stays: it has {before['measured']} measured cells, the new one {count}")
            continue
        text = (path.parent / "table.md").read_text(encoding="utf-8").rstrip("\n")
        if (picture := path.parent / PICTURE).exists():
            (docs / f"{name}.png").write_bytes(picture.read_bytes())
            text += f"\n\n![The paper's numbers and ours]({name}.png)"
        write_text(docs / f"{name}.md", f"{public(text)}\n")
        facts = {key: summary[key] for key in SAID}
        cells = sum(row["state"] != NO_NUMBER for row in rows)
        facts |= {"measured": count, "cells": cells}
        write_text(docs / f"{name}.json", as_text(facts | {CELLS: before.get(CELLS, {})}))
        written.append(name)
    return written


def public(text: str) -> str:
    """Return the text with absolute paths cut to their last part."""
    return re.sub(r"(?<![\w:/.])/(?:[\w.-]+/)+([\w.-]+)", r"DATA/\1", text)


def mark(text: str, facts: dict) -> str:
    """Return the page with "(superseded, VERSION)" behind titles of superseded rows."""
    columns = paper_tables.load(facts["table"]).column
    lines, column = [], ""
    for line in text.split("\n"):
        if line.startswith("## "):
            titled = [one for one in columns if line[3:].startswith(one.title)]
            column = max(titled, key=lambda one: len(one.title)).name if titled else ""
        title, *numbers = line[2:].split(" | ")
        for one in facts["superseded"] if column and numbers[1:] else ():
            measured = numbers[1][0].isdigit() and column in one.get("columns", [column])
            if title == one["row"] and measured:
                line = f"| {title} (superseded, {one['since']}) | {' | '.join(numbers)}"
        lines.append(line)
    note = "Rows marked as superseded are of an earlier version's default or reading."
    if facts["superseded"] and note not in lines:
        at = lines.index("## Verdict")
        lines[at + 1 : at + 1] = ["", note]
    return "\n".join(lines)


def mark_all(docs: Path) -> None:
    """Mark the superseded rows of all pages."""
    for path in sorted(docs.glob("*.json")):
        facts = table_of(path)
        if facts.get("superseded"):
            page = path.with_suffix(".md")
            write_text(page, mark(page.read_text(encoding="utf-8"), facts))


COSTING = f"""## Costs at full scale

Local training of all runs of a table, counted from the paper's networks, rounds, partitions and
seeds: plain training, to which FedDWA, SPFL, APFL and others add further steps. 1 PFLOP is 1e15
operations. Hours are those at one rate each; another network or machine has another:

{RATES}"""


def count(docs: Path) -> None:
    """Count the costs of all tables."""
    lines = [",".join(["table,runs,pflop", *(one.key for one in MACHINES)])]
    for name in paper_tables.names():
        asked = planning.Request(paper_tables.load(name), "full", (), Path("none"))
        cost = full_cost.of_table(asked)
        numbers = (cost.gflop / 1e6, *cost.hours)
        lines.append(",".join([name, str(cost.runs), *(f"{x:.4g}" for x in numbers)]))
        print(lines[-1], flush=True)
    write_text(docs / COSTS, "\n".join(lines) + "\n")


def index(docs: Path) -> str:
    """Return the first page, with a line for each table."""
    heading = ["Table", "Scale", "Cells measured", "Kendall's tau", "Told apart",
               f"Within {NEAR:g}", "Superseded"]  # fmt: skip
    rows = []
    every = [page_of(name, scale) for name in paper_tables.names() for scale in SCALES]
    order = {page: at for at, page in enumerate(every)}
    for page in sorted(docs.glob("*.json"), key=lambda path: order.get(path.stem, len(order))):
        facts = table_of(page)
        if "verdict" not in facts:
            continue  # its cells are saved, but it has no page yet
        verdict, reading = facts["verdict"], facts["reading"]
        tau, near = verdict["kendall_tau"], "-"
        if verdict["compared"]:
            near = f"{verdict['within']} of {verdict['compared']}"
        old = len({one["row"] for one in facts.get("superseded", ())})
        tuned = ", tuned" if facts["tuned_for_agreement"] else ""
        rows.append([
            f"[{facts['title'].partition(':')[0]}]({page.stem}.md)",
            facts["scale"] + (f", {reading}" if reading else ""),
            f"{facts['measured']} of {facts['cells']}",
            "-" if tau is None else f"{tau:+.2f}{tuned}",
            f"{verdict['apart']} of {verdict['pairs']}" if verdict["pairs"] else "-",
            near,
            f"{old} row{'s' if old > 1 else ''}" if old else "-",
        ])  # fmt: skip
    parts = [INTRODUCTION, Table.of_cells(heading, rows).to_markdown()]
    if (docs / COSTS).exists():
        with (docs / COSTS).open(newline="") as file:
            costs = list(csv.DictReader(file))
        heading = ["Table", "Runs", "PFLOP", *(f"hours, {one.name}" for one in MACHINES)]
        rows = [[f"`{c['table']}`", c["runs"], c["pflop"], *(c[m.key] for m in MACHINES)]
                for c in costs]  # fmt: skip
        parts += [COSTING, Table.of_cells(heading, rows).to_markdown()]
    return "\n\n".join(parts) + "\n"


def superseded(docs: Path) -> list[str]:
    """Return lines on the superseded rows: hours of plain local training, and the command.

    Small networks run far below the machine's rate, and compilation is not counted.
    """
    machine, lines = MACHINES[0], []
    for path in sorted(docs.glob("*.json")):
        facts = table_of(path)
        old = {one["row"]: one.get("columns") for one in facts.get("superseded", ())}
        if not old:
            continue
        table = paper_tables.load(facts["table"])
        asked = planning.Request(table, facts["scale"], (), Path("none"), {}, facts["reading"])
        runs: dict[Path, tuple[str, float | None]] = {}
        for column in table.column:
            for cell in asked.cells(column):
                words = tuple(word for word in cell.words if "--output_dir" not in word)
                title = table.line(cell.row).title
                chosen = title in old and column.name in (old[title] or [column.name])
                if chosen and cell.folder not in runs:
                    runs[cell.folder] = title, full_cost.training(words)
        for title in old:
            costs = [cost for row, cost in runs.values() if row == title]
            hours = sum(cost or 0.0 for cost in costs) / machine.rate / 3600
            unknown = f", {costs.count(None)} of them not counted" if None in costs else ""
            note = f"{len(costs)} runs, over {hours:.2g} hours on {machine.name}{unknown}"
            lines.append(f"{path.stem}: {title}: {note}")
        rows = ",".join(line.name for line in table.row if line.title in old)
        words = f"--table={table.name} --scale={facts['scale']} --rows={rows} --saved_cells={docs}"
        words += f" --reading={facts['reading']}" if facts["reading"] else ""
        lines.append(f"  python -m experiments.reproduce {words}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Copy the tables of the queues into the folder of the documentation."""
    args = arguments.parse(
        "reproduced_pages", __doc__, argv, ["docs"], "queues", ("costs", "superseded")
    )
    docs = args.docs
    docs.mkdir(parents=True, exist_ok=True)
    if args.superseded:
        print("\n".join(superseded(docs)))
        return 0
    if args.costs:
        count(docs)
    for queue in args.queues:
        print(f"{queue}: {', '.join(copy(queue, docs)) or 'nothing measured'}")
    mark_all(docs)
    write_text(docs / INDEX, index(docs))
    return 0


if __name__ == "__main__":
    shell.leave(main)
