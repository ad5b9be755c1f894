"""The table of finished runs, a row for each, and the files of such tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.intervals import (
    TITLE,
    beyond,
    half_width,
    half_widths,
    interval,
    interval_note,
)
from fedjax_pfl.results.notes import grouped, over
from fedjax_pfl.results.table import BOLD, Column, Table, measured
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.metric_names import ACCURACY, Measure

from .runs import ALGORITHM, Run, same_data
from .scores import SCORES, Choice, chosen_clients, curve, describe_clients, one_number
from .selection import REPEATS, bare, differing_settings, labels, mixed_code, varying, with_scores


def run_columns(measure: Measure) -> list[Column]:
    """Return the columns of `experiments.compare`; rows have the keys that apply to them.

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


def compare_runs(
    runs: Sequence[Run],
    choice: Choice = Choice(),  # noqa: B008 - immutable
    *,
    baseline: str | None = None,
    target: float | None = None,
) -> tuple[Table, str]:
    """Return (a table with a row for each run, the meaning of its numbers).

    Args:
      choice: which scores.
      baseline: label or algorithm of the run that is subtracted in differences; none by default.
        An algorithm may be several runs that differ only in their seeds: these are pooled.
      target: accuracy in percent, or the number to be reached of another measure.

    Raises:
      InputError: an unknown name, scores that a run lacks, or different data without that flag.
    """
    model, split, average = choice.model, choice.split, choice.average
    measure = runs[0].measure
    if target is not None and measure.fraction:
        # A high score of at most 1 % is a share, such as 0.8 for 80 %; a low one may be a target.
        if measure.higher:
            require(1 < target <= 100, "target", target, "a percentage in (1, 100], such as 80")
        else:
            require(0 <= target <= 100, "target", target, "a percentage in [0, 100], such as 5")
    every, runs = runs, with_scores(runs, [model], split)
    other = next((run for run in runs if not same_data(run, runs[0])), None)
    if other is not None and not choice.different_data:
        apart = "" if runs[0].data_name != other.data_name else " with other names or samples"
        raise InputError(
            f"These runs are not on the same data: {runs[0].folder} has {runs[0].data_name}, "
            f"{other.folder} {other.data_name}{apart}; --different_data puts them into one table."
        )
    names, rows = labels(runs), chosen_clients(runs, choice.clients, model, split)
    scores = []
    for run, chosen in zip(runs, rows, strict=True):
        values = one_number(curve(run, chosen, model, split, average), choice.score, measure)
        scores.append(dict(zip(run.seeds, values.tolist(), strict=True)))
    base, subtracted = None, []
    if baseline is not None:
        subtracted = baseline_runs(baseline, runs, names, choice)
        base = {seed: score for k in subtracted for seed, score in scores[k].items()}
    table = [
        {"label": name} | _row(run, own, base, chosen, target, (model, split, average)) | more
        for run, name, own, chosen, more in zip(
            runs, names, scores, rows, _differing_facts(runs, rows, scores), strict=True
        )
    ]
    text = f"{meaning_of(measure)}{model} model, {split} samples, {SCORES[choice.score]}"
    text += f", {describe_clients(runs, rows, average)}"
    remarks = {name: _remarks(run, model) for run, name in zip(runs, names, strict=True)}
    notes = [
        *grouped(remarks),
        *_meaning(table, choice.score, measure),
        *_missing_in_labels(every, runs, names, choice),
        *mixed_code([[runs[k] for k in subtracted]]),
    ]
    return Table(run_columns(measure), table, notes), text


def _meaning(table: Sequence[dict], score: str, measure: pfl.models.Measure) -> list[str]:
    """Return notes on the columns and the intervals."""
    notes = []
    if score == "best":
        notes.append("Best round: chosen on the samples that it is scored on.")
    if score != "final":
        notes.append("Worst tenth: after the last round.")
    if any("difference" in row for row in table) and any("seeds" in row for row in table):
        notes.append("Difference: over the seeds that a run has in common with the baseline.")
    marked = any(beyond(row["accuracy"], row.get("interval"), *measure.range) for row in table)
    high = measure.range[1]
    marked |= any(beyond(row["difference"], row.get("difference_interval"), -high, high)
                  for row in table if "difference" in row)  # fmt: skip
    several = [len(row["scores"]) for row in table if row.get("interval") is not None]
    note = interval_note(min(several, default=0), marked)
    return [*notes, *([] if note is None else [note])]


def meaning_of(measure: pfl.models.Measure) -> str:
    """Describe a table's measure unless it is accuracy."""
    if measure == ACCURACY:
        return ""
    return f"{measure.label}, {measure.better} is better, "


def _differing_facts(runs, rows, scores) -> list[dict]:
    """Return each row's facts in which rows differ: seeds, clients, data, rounds."""

    def rounds(run):
        every = int(np.diff(run.result.eval_rounds, prepend=0).max())
        return f"{run.result.eval_rounds[-1]}" + ("" if every == 1 else f", scored every {every}")

    facts = [  # each as it is compared, and as it is shown
        {
            "seeds": (tuple(sorted(own)), len(own)),
            "clients": ((run.num_clients, *chosen), over(chosen.tolist())),
            "data": (run.data_name,) * 2,
            "rounds": (rounds(run),) * 2,
        }
        for run, chosen, own in zip(runs, rows, scores, strict=True)
    ]
    differ = [name for name in facts[0] if len({one[name][0] for one in facts}) > 1]
    return [{name: one[name][1] for name in differ} for one in facts]


def _missing_in_labels(every, runs, names, choice: Choice) -> list[str]:
    """Return notes on facts missing in the labels: missing scores, differing settings."""
    notes = []
    left = [str(run.folder) for run in every if run not in runs]
    if left:
        what = f"{choice.split} scores of the model {choice.model!r}"
        notes.append(f"Left out, without {what}: {', '.join(left)}.")
    differ = varying(runs, (*REPEATS, ALGORITHM), choice.moved_by)
    hidden = [name for name in differ if not any(bare(name) + "=" in label for label in names)]
    if hidden:
        notes.append(f"The runs also differ in {', '.join(hidden)}.")
    return notes


def baseline_runs(
    word: str, runs: Sequence[Run], names: Sequence[str], choice: Choice
) -> list[int]:
    """Return the positions of the baseline's runs, which differ only in their seeds.

    Args:
      word: one of the labels `names`, or an algorithm, in any spelling.
      choice: the compared scores.

    Raises:
      InputError: an unknown name, or runs that differ in more than seeds.
    """
    if word in names:
        return [names.index(word)]
    name = pfl.core.algorithm_name(word, {*names, *(run.algorithm for run in runs)}, "baseline")
    if name in names:
        return [names.index(name)]
    result = [k for k, run in enumerate(runs) if run.algorithm == name]
    chosen = [runs[k] for k in result]
    seeds = [seed for run in chosen for seed in run.seeds]
    alike = not differing_settings(chosen, choice.moved_by)
    alike = alike and all(same_data(run, chosen[0]) for run in chosen)
    if not alike or len(set(seeds)) < len(seeds):
        raise InputError(
            f"baseline {word!r} is {len(result)} runs that are not one with several seeds: name "
            f"one of {'; '.join(names[k] for k in result)}."
        )
    return result


def _row(run, scores, base, chosen, target, which) -> dict[str, Any]:
    """Return a run's values by the keys of `run_columns`, and its scores by seed."""
    values = np.array(list(scores.values()))
    apart = [] if base is None else [scores[seed] - base[seed] for seed in scores if seed in base]
    gaps = np.array(apart)
    measure = run.measure
    worst = measure.scale * measure.worst_tenth(run.values(*which[:2])[:, -1, chosen])
    sent = (run.traffic("up") + run.traffic("down")).sum(axis=-1) / 1e6  # [S, T]
    flops = run.flops()
    computed = None if flops is None else flops.sum(axis=-1) / 1e9  # [S, T]
    reached: list[tuple[int, int]] = []  # (index of a seed, its first round at the target)
    if target is not None:
        close = 1e-4 if measure.fraction else 1e-6 * abs(target)  # scores are float32
        hits = measure.toward(curve(run, chosen, *which)) >= measure.toward(target) - close
        first = run.result.eval_rounds[hits.argmax(axis=1)].tolist()
        reached = [(s, first[s]) for s in np.flatnonzero(hits.any(axis=1)).tolist()]
    rounds_to = _mean([rounds for _, rounds in reached])
    pace = run.result.seconds_per_round
    row = {
        "scores": scores,
        "accuracy": float(values.mean()),
        "interval": interval(values),
        "difference": _mean(gaps),
        "difference_interval": interval(gaps),
        "worst": float(worst.mean()),
        "megabytes": float(sent.sum(axis=1).mean()),
        "gflop": None if computed is None else float(computed.sum(axis=1).mean()),
        "rounds_to": rounds_to,
        "megabytes_to": _mean([sent[s, :rounds].sum() for s, rounds in reached]),
        "gflop_to": None
        if computed is None
        else _mean([computed[s, :rounds].sum() for s, rounds in reached]),
        "seconds_to": None if rounds_to is None else rounds_to * pace,
        "reached": None if target is None else f"{len(reached)}/{len(values)}",
    }
    return {key: value for key, value in row.items() if value is not None}


def _remarks(run: Run, model: str) -> tuple[str, ...]:
    """Return the run's remarks, with the adaptation if adapted models are compared."""
    flags = run.config["flags"].get("run", {})
    epochs, steps, leaves = (flags.get(f"adapt_{name}") for name in ("epochs", "steps", "leaves"))
    remarks = run.remarks
    if model != "adapted" or not (epochs or steps):
        return remarks
    return *remarks, f"adapted by {pfl.Adaptation(epochs or 1, steps or None, leaves)}"


def _mean(values) -> float | None:
    return float(np.mean(values)) if len(values) else None


def best_in_bold(table: Table, key: str, measure: Measure) -> Table:
    """Return the table with the best rows of a column in bold."""
    best = np.fmax.reduce([measure.toward(row[key]) for row in table.rows])  # NaN if all are
    rows = enumerate(table.rows)
    emphasis = {(k, key): BOLD for k, row in rows if measure.toward(row[key]) == best}
    return replace(table, emphasis=emphasis)
