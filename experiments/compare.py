"""Comparison of finished runs in one table: `python -m experiments.compare --help`."""

if __name__ == "__main__":  # before anything is loaded
    from .cli.start import launch

    launch("compare")

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import absl.flags
import pandas as pd

import fedjax_pfl as pfl
from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.results.significance import FEWEST, Ranking
from fedjax_pfl.results.table import Table
from fedjax_pfl.utils.errors import InputError

from .cli import plugins, shell
from .cli.flag_groups import Group, new_path
from .cli.parsing import FlagValues, parse_words, value_of
from .cli.start import called
from .figures.drawing import split_at_commas
from .figures.loading import find
from .figures.pivots import SPREADS, Pivot, pivoted
from .figures.run_table import best_in_bold, compare_runs, meaning_of
from .figures.runs import Run
from .figures.scores import SCORES, Choice, choice_of, define_flags
from .figures.selection import REPEATS, read_labels, renamed, with_labels
from .outputs.report import Section
from .outputs.run_files import write_csv

USAGE = f"""\
Compare finished runs of {called("run")} in one table.

  {called("compare")} --runs=runs/a,runs/b --baseline=fedavg --target=80
  {called("compare")} --runs='runs/*' --algorithms=feddwa --output_dir=tables/feddwa
  {called("compare")} --runs='runs/*' --pivot=dataset --labels=labels.txt --output_dir=tables/all
  {called("compare")} --runs='runs/*' --pivot=dataset,alpha --tests --baseline=local

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
    group.text("metric", None, "a metric of the runs (default: their task's main metric)")
    define_flags(group)
    meaning = "settings, such as dataset or dataset,alpha, whose values are the columns"
    group.text("pivot", None, f"{meaning} (default: a row for each run)")
    group.text("spread", SPREADS[0], f"spread in the cells of --pivot: {' or '.join(SPREADS)}")
    meaning = "Friedman's, Wilcoxon's and Nemenyi's tests with the columns of --pivot as blocks"
    group.switch("tests", False, meaning)
    meaning = "a file with lines NAME=LABEL for algorithms and columns (default: their names)"
    group.text("labels", None, meaning)
    meaning = "a new folder for table.md, .csv and .tex (default: printed only)"
    group.text("output_dir", None, meaning)
    group.help()
    plugins.define(group)
    parse_words(values, argv)
    return values


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    args = parse(argv)
    if args["help"].value:
        print(f"{USAGE}\n\n{args.module_help('compare')}")
        return 0
    if not args.runs:
        raise InputError("Give the folders of finished runs with --runs=DIR,...")
    output = new_path("output_dir", args.output_dir)
    with with_labels(read_labels(value_of(args, "labels"))):
        return tabulate(args, output)


def tabulate(args: absl.flags.FlagValues, output: Path | None) -> int:
    """Print the tables and write them if a folder is given; return the exit code."""
    choice, runs = choice_of(args), find(args.runs, args.algorithms, args.metric)
    sections, scores = (_rows if args.pivot is None else _pivot)(args, runs, choice)
    print("\n\n".join(section.to_markdown("") for section in sections))
    if output is not None:
        with writing(output):
            output.mkdir(parents=True)
        for section in sections:
            section.write(output)
        write_csv(output / "seeds.csv", scores)
        names = ", ".join(f"{section.name}.md, .csv, .tex" for section in sections)
        print(f"\n{output}/{names}, seeds.csv")
    return 0


def _pivot(
    args: absl.flags.FlagValues, runs: Sequence[Run], choice: Choice
) -> tuple[list[Section], pd.DataFrame]:
    """Return the table of --pivot, with the ranks of --tests, and its scores by seed."""
    useless = [name for name in ("baseline", "target") if args[name].present]
    useless = [name for name in useless if not (name == "baseline" and args.tests)]
    if useless:
        raise InputError(f"--{useless[0]} has no column in the table of --pivot: leave it out.")
    repeated = [name for name in split_at_commas(args.pivot) if name in REPEATS]
    if args.tests and repeated:
        raise InputError(
            f"--tests takes data sets or settings as blocks, and {repeated[0]} is none: runs "
            "of several seeds are not independent."
        )
    made = pivoted(runs, args.pivot, choice, spread=value_of(args, "spread"))
    text = meaning_of(made.measure)
    text += f"{choice.model} model, {choice.split} samples, {SCORES[choice.score]}, {made.over}"
    text += f", %, by {args.pivot}" if made.measure.fraction else f", by {args.pivot}"
    sections = [Section(text, "table", [made.table()], numbers=made.numbers())]
    if args.tests:
        ranks, ranking = ranked(made, value_of(args, "baseline"), {run.algorithm for run in runs})
        title = f"Ranks by {args.pivot}"
        sections.append(Section(title, "ranks", [ranks], picture=ranking.plot()))
    return sections, made.scores


def _rows(
    args: absl.flags.FlagValues, runs: Sequence[Run], choice: Choice
) -> tuple[list[Section], pd.DataFrame]:
    """Return the table with a row for each run, and its scores by seed."""
    if args.tests:
        raise InputError(
            f"--tests needs runs on at least {FEWEST} data sets or settings, and --pivot with "
            "what differs between them, such as --pivot=dataset."
        )
    if args["spread"].present:
        raise InputError("--spread is for --pivot: other tables have intervals only.")
    target, measure = value_of(args, "target"), runs[0].measure
    table, text = compare_runs(runs, choice, baseline=value_of(args, "baseline"), target=target)
    scores = [(row["label"], *one) for row in table.rows for one in row["scores"].items()]
    section = Section(text, "table", [best_in_bold(table, "accuracy", measure)])
    return [section], pd.DataFrame(scores, columns=["label", "seed", measure.name])


def ranked(
    pivot: Pivot, baseline: str | None, algorithms: Collection[str] = ()
) -> tuple[Table, Ranking]:
    """Return the table of ranks over a pivot's columns, and the ranking.

    Args:
      baseline: a row, or one of the algorithms that has another label there.

    Raises:
      InputError: too few columns, or a baseline that is not a row.
    """
    ranking, notes = pivot.ranking()
    if baseline is not None and baseline not in ranking.names:
        rows = {name: name for name in ranking.names}
        rows |= {name: renamed(name) for name in algorithms if renamed(name) in rows}
        baseline = rows[pfl.core.algorithm_name(baseline, rows, "baseline")]
    table = ranking.table(baseline)
    return replace(table, notes=[*table.notes, *notes]), ranking
