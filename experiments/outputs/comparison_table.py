"""The comparison of algorithms as a table: its columns, rows and notes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results import notes as results_notes
from fedjax_pfl.results import result_table
from fedjax_pfl.results import summary as results_summary
from fedjax_pfl.results.result_table import beyond, half_width, interval, interval_note
from fedjax_pfl.utils.metric_names import ACCURACY, HIGHER, Measure

MEANING = (
    "{}: the personalized model, as a client would use it after the round's aggregation and "
    "before its next local training, on the client's own test samples; plain mean over {}, after "
    "the last round."
)
# Headings of the columns of a classifier; those of another task's measure begin with its name, and
# have no percentages where it is no fraction (`heading`).
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
    "nonfinite_clients": "Non-finite",
}
NOTES = (
    "± 95 %: half the width of Student's 95 % interval over seeds, {seeds} here ('-' with one). "
    "Pooled: {pooled}. Worst tenth: mean over the tenth "
    "of the clients with the {lowest} {said}. Std clients: deviation over clients. Best round: the"
    " {highest} mean over clients of any scored round, chosen on test data. MB: megabytes a "
    "participating client sends and receives in one round. GFLOP: 1e9 floating-point operations of"
    " its local training in one round; run: of a client in all rounds, mean over clients. s/round:"
    " median wall time of one round of one seed, evaluation included. Never drawn: scored clients "
    "that took part in no round, mean over seeds. Diverged: clients whose training went non-"
    "finite. Non-finite: clients whose values became so when they were aggregated."
)
_WHAT = "personalized_test_{}_last_round"
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
    "best": "personalized_test_{}_best_round_mean_over_clients",
    "mb_up": "mb_up_per_client_round",
    "mb_down": "mb_down_per_client_round",
    "gflop": "gflop_per_client_round",
    "gflop_run": "gflop_per_client",
    "never_drawn": "scored_clients_never_drawn_mean_over_seeds",
}


def comparison_rows(
    results: Mapping[str, pfl.Result], headline: str = results_summary.FIRST
) -> list[dict[str, Any]]:
    """One row for each algorithm with the keys of `COLUMNS`; accuracies are fractions.

    Under "accuracy" is the headline of the task, whatever it is: "measure". Its other measures are
    "measures".

    "clients" are the ids of the clients that the row's means are over; "common" is the mean over
    the clients that all rows have, None where there is no such client. Rows have a headline where
    it is another one than the accuracy after the last round.
    """
    rows = []
    common = _common(results)
    for name, result in results.items():
        summary = result.summary()
        measure, more = result.measure(), result.measures[1:][: result_table.MOST]
        accuracy, traffic = summary[measure.name], summary["traffic_mb_per_client_round"]
        computation = summary["computation"]
        last = result.values()[:, 0, -1][:, np.isin(result.client_ids, common)]
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
                "nonfinite_clients": len(summary["nonfinite_clients"]),
                "measure": measure,
                "measures": more,
                **{_key(one): summary["metrics"][one.name]["final_mean"] for one in more},
            }
        )
        if headline != results_summary.FIRST:
            lead = result.headline(headline)[:, 0]
            rows[-1] |= {"headline": float(lead.mean()), "headline_interval": interval(lead)}
    return rows


def _common(results: Mapping[str, pfl.Result]) -> list[int]:
    """Ids of the clients that all rows score."""
    each = [set(results_notes.scored_clients(result)) for result in results.values()]
    return sorted(set.intersection(*each))


def columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns with content; the clients of a mean only where rows differ in them."""
    differ = len({tuple(row["clients"]) for row in rows}) > 1
    silent = set() if differ else {"clients"}
    if not differ or any(row["common"] is None for row in rows):
        silent.add("common")
    if not any(row["never_drawn"] for row in rows):
        silent.add("never_drawn")
    if not any(row["nonfinite_clients"] for row in rows):
        silent.add("nonfinite_clients")
    if not rows[0]["measure"].pools:
        silent.add("pooled")
    return [key for key in _keys(rows[0]) if key not in silent]


def _keys(row: Mapping[str, Any]) -> list[str]:
    """Of a row's columns; the task's other measures follow its best round."""
    keys = [key for key in COLUMNS if key in row]
    at = keys.index("best") + 1
    return [*keys[:at], *map(_key, row["measures"]), *keys[at:]]


def _key(measure: Measure) -> str:
    """Of the column of a further measure; no other one is called so."""
    return f"metric {measure.name}"


def heading(key: str, row: Mapping[str, Any]) -> str:
    """Of a column."""
    measure = _measure(key, row)
    if measure is None:
        return COLUMNS[key]
    if key == "accuracy" or key not in COLUMNS:
        return measure.title
    if key == "std_over_clients":  # has no direction
        measure = measure._replace(better=HIGHER)
    return measure.heading(COLUMNS[key].removesuffix(" %"))


def _measure(key: str, row: Mapping[str, Any]) -> Measure | None:
    """What a column has values of; None for other numbers."""
    own = {_key(one): one for one in row["measures"]}
    percent = key not in HALF_WIDTHS and COLUMNS.get(key, "").endswith("%")
    return row["measure"] if percent else own.get(key)


def table_cells(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str] | None = None
) -> list[list[str]]:
    """Heading and rows of strings for readers: percentages instead of fractions."""
    keys = columns(rows) if keys is None else keys
    cells = [[heading(key, rows[0]) for key in keys]]
    for row in rows:
        line = []
        for key in keys:
            value, measure, lead = row[key], _measure(key, row), row["measure"]
            if value is None:
                line.append("-")
            elif key in HALF_WIDTHS:
                mean, half = (lead.scale * x for x in (row[HALF_WIDTHS[key]], value))
                line.append(half_width(mean, half, measure=lead))
            elif key == "clients":
                line.append(results_notes.over(value))
            elif measure is not None:
                line.append(measure.shown(measure.scale * value))
            else:
                line.append(f"{value:.3g}" if isinstance(value, float) else str(value))
        cells.append(line)
    return cells


def csv_cells(
    rows: Sequence[Mapping[str, Any]], headline: str = results_summary.FIRST
) -> list[list]:
    """Heading and rows for machines: fractions, ids with spaces between them, "-" for None."""
    keys, measure = _keys(rows[0]), rows[0]["measure"].name
    lead = f"personalized_test_{measure}_headline_{headline}"
    names = {key: name.format(measure) for key, name in CSV_NAMES.items()}
    names |= {"headline": lead, "headline_interval": f"{lead}_ci95_half_width_over_seeds"}
    for one in rows[0]["measures"]:
        names[_key(one)] = f"{_WHAT.format(one.name)}_mean_over_clients"

    def text(value):
        return " ".join(map(str, value)) if isinstance(value, list) else value

    body = [["-" if row[key] is None else text(row[key]) for key in keys] for row in rows]
    return [[names.get(key, key) for key in keys], *body]


def labelled(results: Mapping[str, pfl.Result]) -> dict[str, pfl.Result]:
    """The results by names with the clients of their means, where rows differ in them."""
    each = {name: results_notes.scored_clients(result) for name, result in results.items()}
    if len(set(map(tuple, each.values()))) == 1:
        return dict(results)
    return {
        f"{name} ({results_notes.over(each[name])})": result for name, result in results.items()
    }


def headline_notes(results: Mapping[str, pfl.Result], headline: str) -> list[str]:
    """A sentence on the headline, where it is another one than the last round's mean."""
    if headline == results_summary.FIRST:
        return []
    how = results_summary.headline_of(headline)
    warning = f"; {results_summary.CHOSEN_ON_TEST}" if how.score == "best" else ""
    meaning = how.meaning.replace("accuracy", next(iter(results.values())).measure().said)
    return [f"Headline ({headline}): the personalized model, {meaning}{warning}."]


def headline(results: Mapping[str, pfl.Result]) -> str:
    """The meaning of the accuracies, and the clients of the mean."""
    measure = next(iter(results.values())).measure()
    what = f"{measure.said[:1].upper()}{measure.said[1:]}"
    what += "" if measure.higher else " (lower is better)"
    each = [results_notes.scored_clients(result) for result in results.values()]
    count = max(result.num_clients for result in results.values())
    if all(ids == each[0] for ids in each):
        if len(each[0]) == count:
            every = f"all {count} clients" if count > 1 else "the only client"
            return MEANING.format(what, every)
        return MEANING.format(
            what, f"{results_notes.named(each[0])}, those of {count} that are scored"
        )
    common = _common(results)
    text = MEANING.format(what, "the clients of the column 'Mean over', not the same in all rows")
    if not common:
        return f"{text} No client is scored in all rows, so they do not compare."
    whole = (
        f"--score_clients={','.join(map(str, common))} makes"
        if len(common) <= results_notes.MOST
        else "--score_clients with their numbers makes"
    )
    compares = measure.heading(COLUMNS["common"].removesuffix(" %"))
    return (
        f"{text} What compares is {compares!r}, over {results_notes.named(common)}, which all rows "
        f"score; {whole} all of the table so."
    )


def footnotes(
    results: Mapping[str, pfl.Result], headline: str = results_summary.FIRST
) -> list[str]:
    """Notes below the table, a line each: on single rows, then on intervals."""
    said = {name: results_notes.row_remarks(result) for name, result in results.items()}
    measure = next(iter(results.values())).measure()
    finals = [result.curve()[:, 0, -1] for result in results.values()]
    if headline != results_summary.FIRST:
        finals += [result.headline(headline)[:, 0] for result in results.values()]
    finals = [measure.scale * values for values in finals]
    marked = any(beyond(values.mean(), interval(values), *measure.range) for values in finals)
    note = interval_note(min(len(result.seeds) for result in results.values()), marked)
    return [*results_notes.grouped(said), *([] if note is None else [note])]


def notes(results: Mapping[str, pfl.Result]) -> str:
    """What the columns mean."""
    seeds = max(len(result.seeds) for result in results.values())
    measure = next(iter(results.values())).measure()
    pooled = "all correct test predictions over all test samples"
    if measure != ACCURACY:
        pooled = f"the {measure.said} over all clients' test samples"
    lowest, highest = ("lowest", "highest") if measure.higher else ("highest", "lowest")
    ends = {"lowest": lowest, "highest": highest, "said": measure.said, "pooled": pooled}
    return NOTES.format(seeds=seeds, **ends)
