"""Compares finished runs in one table: `python -m experiments.compare --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("compare")

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import absl.flags
import numpy as np
import pandas as pd

import fedjax_pfl as pfl
from fedjax_pfl.results.intervals import beyond, interval, interval_note
from fedjax_pfl.results.notes import grouped, over
from fedjax_pfl.results.table import Table
from fedjax_pfl.utils.errors import InputError, require
from fedjax_pfl.utils.metric_names import ACCURACY

from .cli import plugins, shell
from .cli.parsing import FlagValues, Group, new_path, parse_words, value_of
from .cli.start import called
from .figures.choice import Choice, choice_of, define_flags
from .figures.loading import find
from .figures.pivots import SPREADS, pivoted
from .figures.run_table import best_in_bold, run_columns, write_tables
from .figures.runs import ALGORITHM, Run, same_data
from .figures.scores import SCORES, chosen_clients, curve, one_number, who
from .figures.selection import (
    REPEATS,
    apart,
    labelled,
    labels,
    mixed_code,
    read_labels,
    varying,
    with_scores,
)

USAGE = f"""\
Compares finished runs of {called("run")} and prints one table.

  {called("compare")} --runs=runs/a,runs/b --baseline=fedavg --target=80
  {called("compare")} --runs='runs/*' --algorithms=feddwa --output_dir=tables/feddwa
  {called("compare")} --runs='runs/*' --pivot=dataset --labels=labels.txt --output_dir=tables/all

--runs takes folders of an algorithm, of a comparison (all its algorithms), or folders above
those. Runs on other data sets or partitions need --different_data."""


def compare(
    runs: Sequence[Run],
    choice: Choice = Choice(),  # noqa: B008 - immutable
    *,
    baseline: str | None = None,
    target: float | None = None,
) -> tuple[Table, str]:
    """(a table with a row for each run, the meaning of its numbers).

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
        require(1 < target <= 100, "target", target, "a percentage in (1, 100], such as 80")
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
        subtracted = _baseline(baseline, runs, names)
        base = {seed: score for k in subtracted for seed, score in scores[k].items()}
    table = [
        {"label": name} | _row(run, own, base, chosen, target, (model, split, average)) | more
        for run, name, own, chosen, more in zip(
            runs, names, scores, rows, _apart(runs, rows, scores), strict=True
        )
    ]
    text = f"{_what(measure)}{model} model, {split} samples, {SCORES[choice.score]}"
    text += f", {who(runs, rows, average)}"
    remarks = {name: _remarks(run, model) for run, name in zip(runs, names, strict=True)}
    notes = [
        *grouped(remarks),
        *_meaning(table, choice.score, measure),
        *_beside(every, runs, names, model, split),
        *mixed_code([[runs[k] for k in subtracted]]),
    ]
    return Table(run_columns(measure), table, notes), text


def _meaning(table: Sequence[dict], score: str, measure: pfl.models.Measure) -> list[str]:
    """Notes on the columns and the intervals."""
    notes = []
    if score == "best":
        notes.append("Best round: chosen on the samples that it is scored on.")
    if score != "final":
        notes.append("Worst tenth: after the last round.")
    if any("difference" in row for row in table) and any("seeds" in row for row in table):
        notes.append("Difference: over the seeds that a run has in common with the baseline.")
    low, high = measure.range
    marked = any(beyond(row["accuracy"], row.get("interval"), low, high) for row in table)
    marked |= any(beyond(row["difference"], row.get("difference_interval"), -high, high)
                  for row in table if "difference" in row)  # fmt: skip
    several = [len(row["scores"]) for row in table if row.get("interval") is not None]
    note = interval_note(min(several, default=0), marked)
    return [*notes, *([] if note is None else [note])]


def _what(measure: pfl.models.Measure) -> str:
    """What a table is of, where it is no accuracy."""
    if measure == ACCURACY:
        return ""
    return f"{measure.label}, {measure.better} is better, "


def _apart(runs, rows, scores) -> list[dict]:
    """Of each row, the facts in which rows differ: seeds, clients, data, rounds."""

    def rounds(run):
        every = int(np.diff(run.eval_rounds, prepend=0).max())
        return f"{run.eval_rounds[-1]}" + ("" if every == 1 else f", scored every {every}")

    facts = {
        "seeds": [tuple(sorted(own)) for own in scores],
        "clients": [(run.num_clients, *own) for run, own in zip(runs, rows, strict=True)],
        "data": [run.data_name for run in runs],
        "rounds": [rounds(run) for run in runs],
    }
    shown = {
        "seeds": [len(own) for own in scores],
        "clients": [over(own.tolist()) for own in rows],
        "data": facts["data"],
        "rounds": facts["rounds"],
    }
    differ = [name for name, values in facts.items() if len(set(values)) > 1]
    return [{name: shown[name][k] for name in differ} for k in range(len(runs))]


def _beside(every, runs, names, model: str, split: str) -> list[str]:
    """Notes on facts missing from the labels: runs without scores, settings that differ."""
    notes = []
    left = [str(run.folder) for run in every if run not in runs]
    if left:
        notes.append(f"Left out, without {split} scores of the model {model!r}: {', '.join(left)}.")
    differ = [name for name in varying(runs, REPEATS) if name != ALGORITHM]
    hidden = [name for name in differ if not any(_bare(name) + "=" in label for label in names)]
    if hidden:
        notes.append(f"The runs also differ in {', '.join(hidden)}.")
    return notes


def _bare(name: str) -> str:
    return name.partition(".")[2] or name


def _baseline(word: str, runs: Sequence[Run], names: Sequence[str]) -> list[int]:
    """The places of the runs to subtract: several have different seeds and are otherwise alike."""
    if word in names:
        return [names.index(word)]
    name = pfl.core.algorithm_name(word, {*names, *(run.algorithm for run in runs)}, "baseline")
    if name in names:
        return [names.index(name)]
    result = [k for k, run in enumerate(runs) if run.algorithm == name]
    chosen = [runs[k] for k in result]
    seeds = [seed for run in chosen for seed in run.seeds]
    alike = not apart(chosen) and all(same_data(run, chosen[0]) for run in chosen)
    if not alike or len(set(seeds)) < len(seeds):
        raise InputError(
            f"baseline {word!r} is {len(result)} runs that are not one with several seeds: name "
            f"one of {'; '.join(names[k] for k in result)}."
        )
    return result


def _row(run, scores, base, chosen, target, which) -> dict[str, Any]:
    """The values of a run that it has, by the keys of `run_columns`, and its scores by seed."""
    values = np.array(list(scores.values()))
    apart = [] if base is None else [scores[seed] - base[seed] for seed in scores if seed in base]
    gaps = np.array(apart)
    measure = run.measure
    last = measure.scale * measure.worst_first(run.values(*which[:2])[:, -1, chosen])
    known = np.maximum((~np.isnan(last)).sum(axis=-1), 1)
    worst = [row[: -(-count // 10)].mean() for row, count in zip(last, known, strict=True)]
    sent = (run.traffic("up") + run.traffic("down")).sum(axis=-1) / 1e6  # [S, T]
    flops = run.flops()
    computed = None if flops is None else flops.sum(axis=-1) / 1e9  # [S, T]
    reach: dict[str, list[float]] = {"rounds": [], "megabytes": [], "gflop": []}
    if target is not None:
        curves = curve(run, chosen, *which)
        for s, line in enumerate(curves):
            close = 1e-4 if measure.fraction else 1e-6 * abs(target)  # scores are float32
            hit = np.flatnonzero(measure.toward(line) >= measure.toward(target) - close)
            if len(hit):
                rounds = int(run.eval_rounds[hit[0]])
                reach["rounds"].append(rounds)
                reach["megabytes"].append(sent[s, :rounds].sum())
                if computed is not None:
                    reach["gflop"].append(computed[s, :rounds].sum())
    rounds_to = _mean(reach["rounds"])
    pace = run.result.seconds_per_round
    row = {
        "scores": scores,
        "accuracy": float(values.mean()),
        "interval": interval(values),
        "difference": _mean(gaps),
        "difference_interval": interval(gaps),
        "worst": float(np.mean(worst)),
        "megabytes": float(sent.sum(axis=1).mean()),
        "gflop": None if computed is None else float(computed.sum(axis=1).mean()),
        "rounds_to": rounds_to,
        "megabytes_to": _mean(reach["megabytes"]),
        "gflop_to": _mean(reach["gflop"]),
        "seconds_to": None if rounds_to is None else rounds_to * pace,
        "reached": None if target is None else f"{len(reach['rounds'])}/{len(values)}",
    }
    return {key: value for key, value in row.items() if value is not None}


def _remarks(run: Run, model: str) -> tuple[str, ...]:
    """The run's remarks, and the adaptation of copies where adapted models are compared."""
    flags = run.config["flags"].get("run", {})
    epochs, steps, leaves = (flags.get(f"adapt_{name}") for name in ("epochs", "steps", "leaves"))
    remarks = run.remarks
    if model != "adapted" or not (epochs or steps):
        return remarks
    return *remarks, f"adapted by {pfl.Adaptation(epochs or 1, steps or None, leaves)}"


def _mean(values) -> float | None:
    return float(np.mean(values)) if len(values) else None


def parse(argv: Sequence[str]) -> absl.flags.FlagValues:
    values = FlagValues()
    group = Group(values, "compare")
    group.names("runs", [], "folders of finished runs; must be given")
    group.names("algorithms", [], "only these algorithms of them (default: all)")
    meaning = "run (or algorithm) to subtract in differences (default: no differences)"
    group.text("baseline", None, meaning)
    meaning = "accuracy in percent, or value of another metric, to be reached (default: none)"
    group.number("target", None, meaning)
    group.text("metric", None, "a measure of the runs (default: what their task leads with)")
    define_flags(group)
    meaning = "a setting, such as dataset: algorithms by its values, as papers print it"
    group.text("pivot", None, f"{meaning} (default: a row for each run)")
    group.text("spread", SPREADS[0], f"of the cells of --pivot: {' or '.join(SPREADS)}")
    meaning = "a file with lines NAME=LABEL for algorithms and columns (default: their names)"
    group.text("labels", None, meaning)
    meaning = "a new folder for table.md, .csv and .tex (default: printed only)"
    group.text("output_dir", None, meaning)
    group.switch("help", False, "print this")
    plugins.define(group)
    parse_words(values, argv)
    return values


@shell.script()
def main(argv: list[str]) -> int:
    """Runs the script."""
    args = parse(argv)
    if args["help"].value:
        print(f"{USAGE}\n\n{args.module_help('compare')}")
        return 0
    if not args.runs:
        raise InputError("Give the folders of finished runs with --runs=DIR,...")
    output = new_path("output_dir", args.output_dir)
    with labelled(read_labels(value_of(args, "labels"))):
        return tabulate(args, output)


def tabulate(args: absl.flags.FlagValues, output: Path | None) -> int:
    """Prints the table, and writes it if there is a folder for it; returns the exit code."""
    choice = choice_of(args)
    runs = find(args.runs, args.algorithms, args.metric)
    if args.pivot is not None:
        useless = [name for name in ("baseline", "target") if args[name].present]
        if useless:
            raise InputError(f"--{useless[0]} has no column in the table of --pivot: leave it out.")
        made = pivoted(runs, args.pivot, choice, spread=value_of(args, "spread"))
        text = _what(made.measure)
        text += f"{choice.model} model, {choice.split} samples, {SCORES[choice.score]}, {made.over}"
        text += f", %, by {args.pivot}" if made.measure.fraction else f", by {args.pivot}"
        table = made.table()
        if output is not None:
            made.write(output, text)
    else:
        if args["spread"].present:
            raise InputError("--spread is for --pivot: other tables have both columns' intervals.")
        table, text = compare(
            runs, choice, baseline=value_of(args, "baseline"), target=value_of(args, "target")
        )
        if output is not None:
            measure = runs[0].measure
            scores = [
                (row["label"], seed, score) for row in table.rows
                for seed, score in row["scores"].items()
            ]  # fmt: skip
            scores = pd.DataFrame(scores, columns=["label", "seed", measure.name])
            latex = best_in_bold(table, "accuracy", measure).to_latex()
            write_tables(output, text, table, latex, table, scores)
    print("\n\n".join([text, table.to_markdown(), *table.notes]))
    if output is not None:
        print(f"\n{output}/table.md, .csv, .tex, seeds.csv")
    return 0
