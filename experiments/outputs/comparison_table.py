"""The comparison of algorithms as a table: its columns, rows and notes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results import headlines, remarks
from fedjax_pfl.results.tables import beyond, half_width, interval, interval_note

ACCURACY = (
    "Accuracy: the personalized model, as a client would use it after the round's aggregation and "
    "before its next local training, on the client's own test samples; plain mean over {}, after "
    "the last round."
)
# Heading of a column, and whether its number is a percentage.
COLUMNS = {
    "algorithm": "Algorithm",
    "headline": "Headline %",
    "headline_interval": "± 95 %",
    "accuracy": "Accuracy %",
    "interval": "± 95 %",
    "clients": "Mean over",
    "common": "Common %",
    "pooled": "Pooled %",
    "worst_decile": "Worst tenth %",
    "std_over_clients": "Std clients %",
    "best": "Best round %",
    "mb_up": "MB up",
    "mb_down": "MB down",
    "gflop": "GFLOP",
    "gflop_run": "GFLOP run",
    "seconds_per_round": "s/round",
    "compile_seconds": "Compile s",
    "never_drawn": "Never drawn",
    "diverged_clients": "Diverged",
}
NOTES = (
    "± 95 %: half the width of Student's 95 % interval over seeds, {seeds} here ('-' with one). "
    "Pooled: all correct test predictions over all test samples. Worst tenth: mean over the tenth "
    "of the clients with the lowest accuracy. Std clients: deviation over clients. Best round: the"
    " highest mean over clients of any scored round, chosen on test data. MB: megabytes a "
    "participating client sends and receives in one round. GFLOP: 1e9 floating-point operations of"
    " its local training in one round; run: of a client in all rounds, mean over clients. s/round:"
    " median wall time of one round of one seed, evaluation included. Never drawn: scored clients "
    "that took part in no round, mean over seeds. Diverged: clients whose training went non-"
    "finite."
)
_WHAT = "personalized_test_accuracy_last_round"
HALF_WIDTHS = {"interval": "accuracy", "headline_interval": "headline"}  # of which column
# A column's name in comparison.csv, where it isn't its key.
CSV_NAMES = {
    "accuracy": f"{_WHAT}_mean_over_clients",
    "interval": f"{_WHAT}_ci95_half_width_over_seeds",
    "clients": "mean_over_client_ids",
    "common": f"{_WHAT}_mean_over_clients_of_all_rows",
    "pooled": f"{_WHAT}_pooled_over_samples",
    "worst_decile": f"{_WHAT}_worst_tenth_of_clients",
    "std_over_clients": f"{_WHAT}_std_over_clients",
    "best": "personalized_test_accuracy_best_round_mean_over_clients",
    "mb_up": "mb_up_per_client_round",
    "mb_down": "mb_down_per_client_round",
    "gflop": "gflop_per_client_round",
    "gflop_run": "gflop_per_client",
    "never_drawn": "scored_clients_never_drawn_mean_over_seeds",
}


def comparison_rows(
    results: Mapping[str, pfl.Result], headline: str = headlines.FIRST
) -> list[dict[str, Any]]:
    """One row for each algorithm with the keys of `COLUMNS`; accuracies are fractions.

    "clients" are the ids of the clients that the row's means are over; "common" is the mean over
    the clients that all rows have, None where there is no such client. Rows have a headline where
    it is another one than the accuracy after the last round.
    """
    rows = []
    common = _common(results)
    for name, result in results.items():
        summary = result.summary()
        accuracy, traffic = summary["accuracy"], summary["traffic_mb_per_client_round"]
        computation = summary["computation"]
        last = result.accuracy()[:, 0, -1][:, np.isin(result.client_ids, common)]
        rows.append(
            {
                "algorithm": name,
                "accuracy": accuracy["final_mean"],
                "interval": interval(result.curve()[:, 0, -1]),
                "clients": summary["scored_clients"],
                "common": float(last.mean()) if common else None,
                "pooled": accuracy["final_pooled"],
                "worst_decile": accuracy["worst_decile"],
                "std_over_clients": accuracy["final_std_over_clients"],
                "best": accuracy["best_mean"],
                "mb_up": traffic["up"],
                "mb_down": traffic["down"],
                "gflop": computation["gflop_per_client_round"],
                "gflop_run": computation["gflop_per_client"],
                "seconds_per_round": summary["seconds_per_round"],
                "compile_seconds": summary["compile_seconds"],
                "never_drawn": float(
                    np.mean([len(v) for v in summary["never_took_part"].values()])
                ),
                "diverged_clients": len(summary["diverged_clients"]),
            }
        )
        if headline != headlines.FIRST:
            lead = result.headline(headline)[:, 0]
            rows[-1] |= {"headline": float(lead.mean()), "headline_interval": interval(lead)}
    return rows


def _common(results: Mapping[str, pfl.Result]) -> list[int]:
    """Ids of the clients that all rows score."""
    each = [set(remarks.scored_clients(result)) for result in results.values()]
    return sorted(set.intersection(*each))


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns with content; the clients of a mean only where rows differ in them."""
    differ = len({tuple(row["clients"]) for row in rows}) > 1
    silent = set() if differ else {"clients"}
    if not differ or any(row["common"] is None for row in rows):
        silent.add("common")
    if not any(row["never_drawn"] for row in rows):
        silent.add("never_drawn")
    return [key for key in COLUMNS if key in rows[0] and key not in silent]


def table_cells(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str] | None = None
) -> list[list[str]]:
    """Heading and rows of strings for readers: percentages instead of fractions."""
    keys = columns(rows) if keys is None else keys
    cells = [[COLUMNS[key] for key in keys]]
    for row in rows:
        line = []
        for key in keys:
            value = row[key]
            if value is None:
                line.append("-")
            elif key in HALF_WIDTHS:
                line.append(half_width(100 * row[HALF_WIDTHS[key]], 100 * value))
            elif key == "clients":
                line.append(remarks.over(value))
            elif COLUMNS[key].endswith("%"):
                line.append(f"{100 * value:.2f}")
            else:
                line.append(f"{value:.3g}" if isinstance(value, float) else str(value))
        cells.append(line)
    return cells


def csv_cells(rows: Sequence[Mapping[str, Any]], headline: str = headlines.FIRST) -> list[list]:
    """Heading and rows for machines: fractions, ids with spaces between them, "-" for None."""
    keys = [key for key in COLUMNS if key in rows[0]]
    lead = f"personalized_test_accuracy_headline_{headline}"
    names = CSV_NAMES | {
        "headline": lead, "headline_interval": f"{lead}_ci95_half_width_over_seeds"
    }  # fmt: skip

    def text(value):
        return " ".join(map(str, value)) if isinstance(value, list) else value

    body = [["-" if row[key] is None else text(row[key]) for key in keys] for row in rows]
    return [[names.get(key, key) for key in keys], *body]


def labelled(results: Mapping[str, pfl.Result]) -> dict[str, pfl.Result]:
    """The results by names with the clients of their means, where rows differ in them."""
    each = {name: remarks.scored_clients(result) for name, result in results.items()}
    if len(set(map(tuple, each.values()))) == 1:
        return dict(results)
    return {f"{name} ({remarks.over(each[name])})": result for name, result in results.items()}


def said_of_headline(headline: str) -> list[str]:
    """A sentence on the headline, where it is another one than the accuracy."""
    if headline == headlines.FIRST:
        return []
    how = headlines.headline_of(headline)
    warning = f"; {headlines.CHOSEN_ON_TEST}" if how.score == "best" else ""
    return [f"Headline ({headline}): the personalized model, {how.meaning}{warning}."]


def headline(results: Mapping[str, pfl.Result]) -> str:
    """The meaning of the accuracies, and the clients of the mean."""
    each = [remarks.scored_clients(result) for result in results.values()]
    count = max(result.num_clients for result in results.values())
    if all(ids == each[0] for ids in each):
        if len(each[0]) == count:
            return ACCURACY.format(f"all {count} clients" if count > 1 else "the only client")
        return ACCURACY.format(f"{remarks.named(each[0])}, those of {count} that are scored")
    common = _common(results)
    said = ACCURACY.format("the clients of the column 'Mean over', not the same in all rows")
    if not common:
        return f"{said} No client is scored in all rows, so they do not compare."
    whole = (
        f"--score_clients={','.join(map(str, common))} makes"
        if len(common) <= remarks.MOST
        else "--score_clients with their numbers makes"
    )
    return (
        f"{said} What compares is 'Common %', over {remarks.named(common)}, which all rows score; "
        f"{whole} all of the table so."
    )


def footnotes(results: Mapping[str, pfl.Result], headline: str = headlines.FIRST) -> list[str]:
    """Notes below the table, a line each: on single rows, then on intervals."""
    said = {name: remarks.row_remarks(result) for name, result in results.items()}
    finals = [100 * result.curve()[:, 0, -1] for result in results.values()]
    if headline != headlines.FIRST:
        finals += [100 * result.headline(headline)[:, 0] for result in results.values()]
    marked = any(beyond(values.mean(), interval(values)) for values in finals)
    note = interval_note(min(len(result.seeds) for result in results.values()), marked)
    return [*remarks.grouped(said), *([] if note is None else [note])]
