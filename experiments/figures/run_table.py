"""The table over finished runs: its columns, and its forms in Markdown, LaTeX and CSV."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedjax_pfl.data.whole_files import aside, writing
from fedjax_pfl.results import result_table
from fedjax_pfl.results.notes import grouped
from fedjax_pfl.results.result_table import beyond, half_width, interval_note
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

from ..outputs.run_files import write_text

HEADINGS = {
    "label": "Run",
    "accuracy": "Accuracy %",
    "interval": "± 95 %",
    "seeds": "Seeds",
    "clients": "Mean over",
    "data": "Data",
    "rounds": "Rounds",
    "difference": "Difference",
    "difference_interval": "± 95 %",
    "worst": "Worst tenth %",
    "megabytes": "MB, all clients",
    "gflop": "GFLOP, all clients",
    "rounds_to": "Rounds to",
    "megabytes_to": "MB to",
    "gflop_to": "GFLOP to",
    "seconds_to": "s to",
    "reached": "Reached",
}
COSTS = ("megabytes", "gflop", "megabytes_to", "gflop_to", "seconds_to")  # of any magnitude


@dataclass(frozen=True)
class Row:
    """One run's numbers; accuracies in percent, None where there is none.

    Attributes:
      label: the run's name.
      scores: by seed.
      accuracy, interval: mean over seeds and half the width of its 95 % interval (Student's t).
      seeds, clients, data, rounds: the number of seeds, the clients of the mean, the data, and the
        number of rounds; where rows differ in them.
      difference, difference_interval: the same of score minus the baseline's, over common seeds.
      worst: mean over the worst tenth of the clients after the last round, mean over seeds.
      megabytes: sent and received by all clients in the whole run, mean over seeds.
      gflop: 1e9 floating-point operations of all clients' local training, likewise.
      rounds_to, megabytes_to, gflop_to, seconds_to: until the target was first reached, mean over
        the seeds that reached it; seconds are rounds times the run's median wall time of a round.
      reached: "2/3": seeds that reached the target.
      remarks: the run's own remarks.
      measure: what is compared, where it is not the accuracy: `accuracy` and the others are of it.
    """

    label: str
    scores: dict[int, float]
    accuracy: float
    interval: float | None
    seeds: int | None
    clients: str | None
    data: str | None
    rounds: str | None
    difference: float | None
    difference_interval: float | None
    worst: float
    megabytes: float
    gflop: float | None
    rounds_to: float | None
    megabytes_to: float | None
    gflop_to: float | None
    seconds_to: float | None
    reached: str | None
    remarks: tuple[str, ...] = ()
    measure: Measure = ACCURACY


def columns(rows: Sequence[Row]) -> list[str]:
    """Fields that some row has."""
    return [key for key in HEADINGS if any(getattr(row, key) is not None for row in rows)]


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Heading and rows of strings."""

    def text(row, key):
        value = getattr(row, key)
        if value is None:
            return "-"
        if key == "interval":
            return half_width(row.accuracy, value, measure=row.measure)
        if key == "difference_interval":
            low = -row.measure.range[1]
            return half_width(row.difference, value, low=low, measure=row.measure)
        if isinstance(value, str | int):
            return str(value)
        if key in COSTS:
            return f"{value:.3g}"
        return f"{value:.2f}" if key == "rounds_to" else row.measure.shown(value)

    keys, measure = columns(rows), rows[0].measure
    titles = {"accuracy": measure.title, "worst": measure.heading("Worst tenth")}
    return [[titles.get(key, HEADINGS[key]) for key in keys]] + [
        [text(row, key) for key in keys] for row in rows
    ]


def footnotes(rows: Sequence[Row], score: str) -> list[str]:
    """Notes below the table, a line each."""
    notes = grouped({row.label: row.remarks for row in rows})
    if score == "best":
        notes.append("Best round: chosen on the samples that it is scored on.")
    if score != "final":
        notes.append("Worst tenth: after the last round.")
    if any(row.difference is not None for row in rows) and any(row.seeds for row in rows):
        notes.append("Difference: over the seeds that a run has in common with the baseline.")
    low, high = rows[0].measure.range
    marked = any(beyond(row.accuracy, row.interval, low, high) for row in rows)
    marked |= any(beyond(r.difference, r.difference_interval, -high, high)
                  for r in rows if r.difference is not None)  # fmt: skip
    several = [len(row.scores) for row in rows if row.interval is not None]
    note = interval_note(min(several), marked) if several else None
    return [*notes, *([] if note is None else [note])]


def markdown(rows: Sequence[Row]) -> str:
    return result_table.markdown(cells(rows)) + "\n"


def escaped(text: str) -> str:
    """A cell as LaTeX writes it."""
    return (
        "".join(f"\\{c}" if c in "%_&#" else c for c in text)
        .replace("±", r"$\pm$")
        .replace("↓", r"$\downarrow$")
    )


def latex(rows: Sequence[Row]) -> str:
    """A tabular for the package booktabs, the best row's measure in bold."""
    keys, (heading, *body) = columns(rows), cells(rows)
    at, best = keys.index("accuracy"), rows[0].measure.best(np.array([r.accuracy for r in rows]))

    lines = [rf"\begin{{tabular}}{{l{'r' * (len(heading) - 1)}}}", r"\toprule"]
    lines += [" & ".join(map(escaped, heading)) + r" \\", r"\midrule"]
    for row, line in zip(rows, body, strict=True):
        line = [escaped(cell) for cell in line]
        if row.accuracy == best:
            line[at] = rf"\textbf{{{line[at]}}}"
        lines.append(" & ".join(line) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def write(folder: Path, rows: Sequence[Row], said: str, notes: Sequence[str] = ()) -> None:
    """Writes `table.md`, `table.tex`, `table.csv` (a line for each run) and `seeds.csv`."""
    with writing(folder):
        folder.mkdir(parents=True)
    write_text(folder / "table.md", "\n\n".join([said, markdown(rows).rstrip(), *notes]) + "\n")
    write_text(
        folder / "table.tex", "".join(f"% {line}\n" for line in (said, *notes)) + latex(rows)
    )
    keys = columns(rows)
    with aside(folder / "table.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([rows[0].measure.name if key == "accuracy" else key for key in keys])
        writer.writerows([["" if v is None else v for v in map(row.__getattribute__, keys)]
                          for row in rows])  # fmt: skip
    with aside(folder / "seeds.csv") as part, part.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("label", "seed", rows[0].measure.name))
        writer.writerows((row.label, s, value) for row in rows for s, value in row.scores.items())
