"""Pages of measured tables: `python -m tools.reproduced_pages docs/reproduced QUEUE...`.

Copies the tables of queues (`experiments.reproduce --all` or `--table=A,B`) into a folder of the
documentation, one page and picture each, and writes the index of all pages there. A table without
a measured cell gets no page. Places on this machine are written as DATA.
"""

import csv
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.cli import shell
from experiments.outputs.run_files import write_text
from experiments.reproduction import tables
from experiments.reproduction.entries import NEAR
from fedjax_pfl.results.tables import markdown

INDEX = "README.md"
INTRODUCTION = """# The papers' tables, measured

Tables that `python -m experiments.reproduce` has made ([how](../reproduce.md)), each with its
verdict: how the order of the rows agrees with the paper's, and, where numbers can be compared, how
near they are. The scale and the data set that stands in are said on each page: at another scale
than full, or on other data, only the order means something."""


def table_of(page: Path) -> dict:
    """What the index says of a page: from the file beside it."""
    return json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))


def copy(queue: Path, docs: Path) -> list[str]:
    """Copies a queue's tables; the names of the pages written."""
    written = []
    for path in sorted(queue.glob("*/table.json")):
        name = path.parent.name
        with (path.parent / "table.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        count = sum(row["state"] == "measured" for row in rows)
        if not count:
            continue
        text = (path.parent / "table.md").read_text(encoding="utf-8").rstrip("\n")
        picture = queue / f"{name}.png"
        if picture.exists():
            (docs / picture.name).write_bytes(picture.read_bytes())
            text += f"\n\n![The paper's numbers and ours]({picture.name})"
        write_text(docs / f"{name}.md", f"{public(text)}\n")
        summary = json.loads(path.read_text(encoding="utf-8"))
        facts = {key: summary[key] for key in ("table", "scale", "reading", "title", "verdict")}
        facts |= {"measured": count, "cells": len(rows)}
        write_text(docs / f"{name}.json", json.dumps(facts, indent=2) + "\n")
        written.append(name)
    return written


def public(text: str) -> str:
    """The text without this machine's folders: only the last part of an absolute path is kept."""
    return re.sub(r"(?<![\w:/.])/(?:[\w.-]+/)+([\w.-]+)", r"DATA/\1", text)


def index(docs: Path) -> str:
    """The first page: a line for each table."""
    rows = [["Table", "Scale", "Cells measured", "Kendall's tau", f"Within {NEAR:g}"]]
    order = {name.replace("/", "-"): at for at, name in enumerate(tables.names())}
    pages = sorted(docs.glob("*.json"), key=lambda path: order.get(path.stem, len(order)))
    for page in pages:
        facts = table_of(page)
        verdict, reading = facts["verdict"], facts["reading"]
        tau, near = verdict["kendall_tau"], "-"
        if verdict["compared"]:
            near = f"{verdict['within']} of {verdict['compared']}"
        rows.append([
            f"[{facts['title'].partition(':')[0]}]({page.stem}.md)",
            facts["scale"] + (f", {reading}" if reading else ""),
            f"{facts['measured']} of {facts['cells']}",
            "-" if tau is None else f"{tau:+.2f}",
            near,
        ])  # fmt: skip
    return f"{INTRODUCTION}\n\n{markdown(rows)}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Copies the tables of the queues into the folder of the first argument."""
    _, docs, *queues = map(Path, sys.argv if argv is None else argv)
    docs.mkdir(parents=True, exist_ok=True)
    for queue in queues:
        print(f"{queue}: {', '.join(copy(queue, docs)) or 'nothing measured'}")
    write_text(docs / INDEX, index(docs))
    return 0


if __name__ == "__main__":
    shell.leave(main)
