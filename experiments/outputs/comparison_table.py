"""The comparison of algorithms as a table: its columns, rows and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results import accuracy_conventions, harm, result_table
from fedjax_pfl.results import notes as results_notes
from fedjax_pfl.results.intervals import half_widths, interval, interval_notes
from fedjax_pfl.results.model_names import ADAPTED, PERSONALIZED, TRAINED
from fedjax_pfl.results.notes import grouped
from fedjax_pfl.results.table import Column, Table, measured
from fedjax_pfl.utils.metric_names import ACCURACY, HIGHER, Measure

MEANING = (
    "{}: the personalized model, as a client would use it after the round's aggregation and "
    "before its next local training, on the client's own test samples; plain mean over {}, after "
    "the last round."
)
NOTES = (
    "± 95 %: half the width of Student's 95 % interval over seeds, {seeds} here ('-' with one). "
    "Pooled: {pooled}. Worst tenth: mean over the tenth of the clients with the {lowest} {said}. "
    "Std clients: standard deviation over clients. Best on test: the {highest} mean over clients "
    "of any scored round, which is chosen on test data. MB: megabytes a participating client sends "
    "and receives in one round. GFLOP: 1e9 floating-point operations of its local training in one "
    "round; run: of a client in all rounds, mean over clients. s/round: median wall time of one "
    "round of one seed, evaluation included. Never drawn: scored clients that took part in no "
    "round, mean over seeds. Diverged: clients whose training went non-finite. Non-finite: clients "
    "whose values became so when they were aggregated."
)

DRIFT = (
    "After change: mean over the clients whose concept changes, in the first scored round after "
    "it. Rounds to recover: until nine tenths of the drop are undone ('-': not in all seeds). "
    "Backward transfer: on the previous concept at the end of the next one, minus before the "
    "change. Means over changes and seeds."
)
COPIES = {
    TRAINED: "Trained: the mean of copies that take one further local training before scoring.",
    ADAPTED: "Adapted: the mean of copies that take further local steps before scoring.",
}
VALIDATED = (
    "Validation round: {0} on test samples in the round with the best mean validation {0}, own: in "
    "each client's own best round."
)


def comparison(
    results: Mapping[str, pfl.Result], headline: str = accuracy_conventions.DEFAULT
) -> Table:
    """Return a table with one row per algorithm, and notes on rows and intervals.

    Values of fractions, such as accuracies, are fractions. Under "accuracy" is the main metric of
    the task after the last round, whatever it is. "clients" are the ids of the clients that the
    row's means are over; "common" is the mean over the clients that all rows have. Columns that
    would repeat one fact in every row are only in CSV files.

    Args:
      results: by the name of the row.
      headline: the number that rows lead with, a name in `HEADLINES`, where it is another one than
        the measure after the last round.
    """
    first = next(iter(results.values()))
    measure, more = first.measure(), first.measures[1:][: result_table.MOST]
    common = _common(results)
    over = harm.gains_over_baselines(results, pfl.Result.gains)
    rows, scores = [], []
    for name, result in results.items():
        summary = result.summary()
        numbers, traffic = summary[measure.name], summary["traffic_mb_per_client_round"]
        last = result.values()[:, 0, -1][:, np.isin(result.client_ids, common)]
        absent = [len(ids) for ids in summary["never_took_part"].values()]
        final, lead = result.curve()[:, 0, -1], result.headline(headline)[:, 0]
        scores += [final, lead]
        rows.append({
            "algorithm": name,
            "headline": float(lead.mean()),
            "headline_interval": interval(lead),
            "accuracy": numbers["final_mean"],
            "interval": interval(final),
            "clients": summary["scored_clients"],
            "common": float(last.mean()) if common else None,
            **{name: float(values[:, 0].mean()) for name, values in result.copies().items()},
            "pooled": numbers["final_pooled"],
            "worst_decile": numbers["worst_decile"],
            "std_over_clients": numbers["final_std_over_clients"],
            "best": numbers["best_mean"],
            **_validated(result),
            **{
                key: value
                for base, found in over.items() if name in found
                for key, value in harm.summary_values(base, found[name]).items()
            },
            **_drift(summary),
            **{_key(one): summary["metrics"][one.name]["final_mean"] for one in more},
            "mb_up": traffic["up"],
            "mb_down": traffic["down"],
            "gflop": summary["computation"]["gflop_per_client_round"],
            "gflop_run": summary["computation"]["gflop_per_client"],
            "seconds_per_round": summary["seconds_per_round"],
            "compile_seconds": summary["compile_seconds"],
            "never_drawn": float(np.mean(absent)),
            "diverged_clients": len(summary["diverged_clients"]),
            "nonfinite_clients": len(summary["nonfinite_clients"]),
        })  # fmt: skip
    if headline == accuracy_conventions.DEFAULT:
        rows = [{k: v for k, v in row.items() if not k.startswith("headline")} for row in rows]
    differ = len({tuple(row["clients"]) for row in rows}) > 1
    silent = {key for key in ("never_drawn", "nonfinite_clients") if not any(r[key] for r in rows)}
    silent |= set() if differ else {"clients"}
    silent |= set() if differ and common else {"common"}
    silent |= set() if measure.pools else {"pooled"}
    columns = [
        replace(one, shown=one.shown and one.key not in silent)
        for one in _columns(measure, more, headline, list(over))
    ]
    notes = grouped({name: results_notes.row_remarks(one) for name, one in results.items()})
    notes += interval_notes((measure.scale * one for one in scores), *measure.range)
    return Table(columns, rows, notes)


def _columns(
    measure: Measure, more: Sequence[Measure], headline: str, baselines: Sequence[str]
) -> list[Column]:
    """Return all columns that a table may show."""
    end = f"personalized_test_{measure.name}"
    last, lead = f"{end}_last_round", f"{end}_headline_{headline}"

    def own(key: str, title: str, name: str, of: Measure = measure) -> Column:
        return measured(key, title, of, of.scale, name)

    def width(key: str, of: str, name: str) -> Column:
        end = f"{name}_ci95_half_width_over_seeds"
        return half_widths(key, of, measure, measure.scale, end)

    direction = measure.heading
    return [
        Column("algorithm", "Algorithm"),
        own("headline", direction("Headline"), lead),
        width("headline_interval", "headline", lead),
        own("accuracy", measure.title, f"{last}_mean_over_clients"),
        width("interval", "accuracy", last),
        Column("clients", "Mean over", lambda row: results_notes.over(row["clients"]),
               "mean_over_client_ids"),
        own("common", direction("Common"), f"{last}_mean_over_clients_of_all_rows"),
        *(own(one, direction(one.title()), f"{one}_test_{measure.name}_last_round")
          for one in (TRAINED, ADAPTED)),
        own("pooled", direction("Pooled"), f"{last}_pooled_over_samples"),
        own("worst_decile", direction("Worst tenth"), f"{last}_worst_tenth_of_clients"),
        # A deviation has no direction.
        own("std_over_clients", measure._replace(better=HIGHER).heading("Std clients"),
            f"{last}_std_over_clients"),
        own("best", direction("Best on test"), f"{end}_best_round_mean_over_clients"),
        own("validated", direction("Validation round"), f"{end}_best_validation_round"),
        own("own_validated", direction("Own validation round"),
            f"{end}_own_best_validation_round"),
        own("after", direction("After change"), f"{end}_first_round_after_change"),
        Column("recovery", "Rounds to recover", name="rounds_to_recover"),
        own("backward", "Backward transfer" + " %" * measure.fraction, f"{end}_backward_transfer"),
        *(one for base in baselines
          for one in harm.columns(base, measure, (harm.WIN, harm.HARMED), brief=True)),
        *(own(_key(one), one.title, f"personalized_test_{one.name}_last_round_mean_over_clients",
              one) for one in more),
        Column("mb_up", "MB up", name="mb_up_per_client_round"),
        Column("mb_down", "MB down", name="mb_down_per_client_round"),
        Column("gflop", "GFLOP", name="gflop_per_client_round"),
        Column("gflop_run", "GFLOP run", name="gflop_per_client"),
        Column("seconds_per_round", "s/round"),
        Column("compile_seconds", "Compile s"),
        Column("never_drawn", "Never drawn", name="scored_clients_never_drawn_mean_over_seeds"),
        Column("diverged_clients", "Diverged"),
        Column("nonfinite_clients", "Non-finite"),
    ]  # fmt: skip


def _drift(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return means over the changes of concept, if there are any; None where one has no value."""
    names = {"after": "after", "recovery": "rounds_to_recover", "backward": "backward_transfer"}
    each = summary.get("changes")
    if not each:
        return {}
    values = {key: [one[name] for one in each] for key, name in names.items()}
    return {key: None if None in one else float(np.mean(one)) for key, one in values.items()}


def _validated(result: pfl.Result) -> dict[str, float]:
    """Return test means in the rounds that are best on validation samples, if there are any."""
    if f"{PERSONALIZED}/validation/{result.measure().name}" not in result.scores:
        return {}
    ways = {"validated": False, "own_validated": True}
    return {
        key: float(np.nanmean(result.at_best_validation(own)[:, 0])) for key, own in ways.items()
    }


def _key(measure: Measure) -> str:
    """Return a unique key for the column of a further measure."""
    return f"metric {measure.name}"


def _common(results: Mapping[str, pfl.Result]) -> list[int]:
    """Return the ids of the clients that all rows score."""
    each = [set(results_notes.scored_clients(result)) for result in results.values()]
    return sorted(set.intersection(*each))


def labelled(results: Mapping[str, pfl.Result]) -> dict[str, pfl.Result]:
    """Return the results by name; names state the averaged clients where rows differ."""
    each = {name: results_notes.scored_clients(result) for name, result in results.items()}
    if len(set(map(tuple, each.values()))) == 1:
        return dict(results)
    return {
        f"{name} ({results_notes.over(each[name])})": result for name, result in results.items()
    }


def headline_notes(results: Mapping[str, pfl.Result], headline: str) -> list[str]:
    """Return a sentence on the headline, unless it is the last round's mean."""
    if headline == accuracy_conventions.DEFAULT:
        return []
    how = accuracy_conventions.headline_of(headline)
    warning = f"; {accuracy_conventions.CHOSEN_ON_TEST}" if how.score == "best" else ""
    meaning = how.meaning.replace("accuracy", next(iter(results.values())).measure().label)
    return [f"Headline ({headline}): the personalized model, {meaning}{warning}."]


def caption(results: Mapping[str, pfl.Result]) -> str:
    """Describe the accuracies and the averaged clients."""
    measure = next(iter(results.values())).measure()
    what = f"{measure.label[:1].upper()}{measure.label[1:]}"
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
        return f"{text} No client is scored in all rows, so rows can't be compared."
    whole = (
        f"--score_clients={','.join(map(str, common))}"
        if len(common) <= results_notes.MOST
        else "--score_clients with their numbers"
    )
    compares = measure.heading("Common")
    return (
        f"{text} Compare rows by {compares!r}, over {results_notes.named(common)}, which all rows "
        f"score; {whole} restricts the whole table to them."
    )


def notes(results: Mapping[str, pfl.Result]) -> str:
    """Describe the columns."""
    seeds = max(len(result.seeds) for result in results.values())
    measure = next(iter(results.values())).measure()
    pooled = "all correct test predictions over all test samples"
    if measure != ACCURACY:
        pooled = f"the {measure.label} over all clients' test samples"
    lowest, highest = ("lowest", "highest") if measure.higher else ("highest", "lowest")
    ends = {"lowest": lowest, "highest": highest, "said": measure.label, "pooled": pooled}
    told = [NOTES.format(seeds=seeds, **ends)]
    told += [text for model, text in COPIES.items() if any(r.has(model) for r in results.values())]
    if any(map(_validated, results.values())):
        told.append(VALIDATED.format(measure.label))
    if any(result.summary().get("changes") for result in results.values()):
        told.append(DRIFT)
    if len(results) > 1 and any(one.algorithm in harm.BASELINES for one in results.values()):
        told += [harm.BETTER.format(measure.label), *([harm.WORSE] if measure == ACCURACY else [])]
    return " ".join(told)
