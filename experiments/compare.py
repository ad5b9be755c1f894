"""Comparison of finished runs in one table: `python -m experiments.compare --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("compare")

from collections.abc import Sequence
from pathlib import Path

import absl.flags
import pandas as pd

from fedjax_pfl.utils.errors import InputError

from .cli import plugins, shell
from .cli.flag_groups import Group, new_path
from .cli.parsing import FlagValues, parse_words, value_of
from .cli.start import called
from .figures.loading import find
from .figures.pivots import SPREADS, pivoted
from .figures.run_table import best_in_bold, compare_runs, meaning_of, write_tables
from .figures.scores import SCORES, choice_of, define_flags
from .figures.selection import (
    labelled,
    read_labels,
)

USAGE = f"""\
Compare finished runs of {called("run")} in one table.

  {called("compare")} --runs=runs/a,runs/b --baseline=fedavg --target=80
  {called("compare")} --runs='runs/*' --algorithms=feddwa --output_dir=tables/feddwa
  {called("compare")} --runs='runs/*' --pivot=dataset --labels=labels.txt --output_dir=tables/all

--runs takes folders of an algorithm, of a comparison (all its algorithms), or folders above
those. Runs on other data sets or partitions need --different_data."""


def parse(argv: Sequence[str]) -> absl.flags.FlagValues:
    values = FlagValues()
    group = Group(values, "compare")
    group.names("runs", [], "folders of finished runs (required)")
    group.names("algorithms", [], "algorithms to compare (default: all)")
    meaning = "run (or algorithm) to subtract in differences (default: no differences)"
    group.text("baseline", None, meaning)
    meaning = "accuracy in percent, or value of another metric, to reach (default: none)"
    group.number("target", None, meaning)
    group.text("metric", None, "a measure of the runs (default: what their task leads with)")
    define_flags(group)
    meaning = "a setting, such as dataset, whose values are the columns"
    group.text("pivot", None, f"{meaning} (default: a row for each run)")
    group.text("spread", SPREADS[0], f"spread in the cells of --pivot: {' or '.join(SPREADS)}")
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
    """Run the script."""
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
    """Print the table and write it if a folder is given; return the exit code."""
    choice = choice_of(args)
    runs = find(args.runs, args.algorithms, args.metric)
    if args.pivot is not None:
        useless = [name for name in ("baseline", "target") if args[name].present]
        if useless:
            raise InputError(f"--{useless[0]} has no column in the table of --pivot: leave it out.")
        made = pivoted(runs, args.pivot, choice, spread=value_of(args, "spread"))
        text = meaning_of(made.measure)
        text += f"{choice.model} model, {choice.split} samples, {SCORES[choice.score]}, {made.over}"
        text += f", %, by {args.pivot}" if made.measure.fraction else f", by {args.pivot}"
        table = made.table()
        if output is not None:
            made.write(output, text)
    else:
        if args["spread"].present:
            raise InputError("--spread is for --pivot: other tables have both columns' intervals.")
        table, text = compare_runs(
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
