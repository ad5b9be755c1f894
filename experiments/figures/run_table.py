"""The table over finished runs, a row for each, and the files of such tables."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.results.intervals import TITLE, half_width, half_widths
from fedjax_pfl.results.table import BOLD, Column, Table, measured
from fedjax_pfl.utils.metric_names import Measure

from ..outputs.run_files import write_text


def run_columns(measure: Measure) -> list[Column]:
    """The columns of `experiments.compare`: the keys of its rows, which have those that apply.

    label: the run's name. accuracy, interval: the measure, fractions in percent, mean over seeds
    and half the width of its 95 % interval (Student's t). seeds, clients, data, rounds: the number
    of seeds, the clients of the mean, the data, and the number of rounds, where rows differ in
    them. difference, difference_interval: the score minus the baseline's, over common seeds. worst:
    mean over the worst tenth of the clients after the last round. megabytes, gflop: sent and
    received, and 1e9 floating-point operations of local training, of all clients in the whole run,
    mean over seeds. rounds_to, megabytes_to, gflop_to, seconds_to: until the target was first
    reached, mean over the seeds that reached it; seconds are rounds times the run's median wall
    time of a round. reached: "2/3", seeds that reached the target.
    """

    def difference_width(row: Mapping[str, Any]) -> str:
        mean, half = row["difference"], row["difference_interval"]
        return half_width(mean, half, low=-measure.range[1], measure=measure)

    return [
        Column("label", "Run"),
        measured("accuracy", measure.title, measure, name=measure.name),
        half_widths("interval", "accuracy", measure),
        Column("seeds", "Seeds"),
        Column("clients", "Mean over"),
        Column("data", "Data"),
        Column("rounds", "Rounds"),
        measured("difference", "Difference", measure),
        Column("difference_interval", TITLE, difference_width),
        measured("worst", measure.heading("Worst tenth"), measure),
        Column("megabytes", "MB, all clients"),
        Column("gflop", "GFLOP, all clients"),
        Column("rounds_to", "Rounds to", lambda row: f"{row['rounds_to']:.2f}"),
        Column("megabytes_to", "MB to"),
        Column("gflop_to", "GFLOP to"),
        Column("seconds_to", "s to"),
        Column("reached", "Reached"),
    ]


def best_in_bold(table: Table, key: str, measure: Measure) -> Table:
    """The table with the best rows of a column in bold."""
    best = max(measure.toward(row[key]) for row in table.rows)
    rows = enumerate(table.rows)
    emphasis = {(k, key): BOLD for k, row in rows if measure.toward(row[key]) == best}
    return replace(table, emphasis=emphasis)


def write_tables(
    folder: Path, text: str, table: Table, latex: str, numbers: Table, scores: pd.DataFrame
) -> None:
    """Writes `table.md`, `table.tex`, `table.csv` and `seeds.csv`.

    Args:
      folder: created here.
      text: the meaning of the numbers, above the table.
      table: for `table.md`; latex: the content of `table.tex`.
      numbers: for `table.csv`.
      scores: for `seeds.csv`.
    """
    with writing(folder):
        folder.mkdir(parents=True)
    write_text(folder / "table.md", "\n\n".join([text, table.to_markdown(), *table.notes]) + "\n")
    write_text(folder / "table.tex", f"% {text}\n{latex}")
    write_text(folder / "table.csv", numbers.to_csv())
    write_text(folder / "seeds.csv", scores.to_csv(index=False, lineterminator="\r\n"))
