"""The leaderboard of docs: `python -m tools.leaderboard docs/leaderboard runs/leaderboard ...`.

Takes the finished cells of studies with the preset study/leaderboard, which may have different
algorithms, and writes `README.md` and `leaderboard.csv`, with the exact command of every cell. The
same cells give the same files. With `timings.json` in the folder, the output of case i of
`experiments.benchmark`, the table has times, too.
"""

import csv
import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from experiments.benchmarks.cases import of_fedavg
from experiments.cli import flags, identity, shell
from experiments.figures.loading import read
from experiments.figures.runs import Run
from experiments.outputs.run_files import write_text
from experiments.study import TUNING
from fedjax_pfl.results.intervals import mean_with_interval
from fedjax_pfl.results.significance import Ranking
from fedjax_pfl.results.table import MISSING, Table

SETTINGS = {
    "dirichlet": "Dirichlet",
    "grouped": "Grouped",
    "pathological": "Pathological",
    "sampled": "100 clients, sampled",
    "features": "Feature shift",
    "drift": "Drift",
}
TEXT = """\
# Leaderboard

{count} algorithms in six settings on Fashion-MNIST, as the preset `study/leaderboard` runs them:
300 images a client, of which a fifth are validation samples, an `mlp` with one hidden layer,
{rounds} rounds of two local epochs, {seeds} seeds. In each setting each row tries the learning
rates {rates} with one seed, and keeps the one with the best validation
accuracy. All other hyperparameters have their defaults, which suit larger networks or more rounds
for some: a place in this table says little about other data.

| Setting | Clients |
|---|---|
| Dirichlet | 20, Dir(0.1) over classes |
| Grouped | 20 in four groups, 80 % of their samples of the group's dominant classes |
| Pathological | 20 with two classes each |
| 100 clients, sampled | 100, Dir(0.5); a fifth takes part in each round |
| Feature shift | 20, Dir(1); four groups see images rotated by 0, 90, 180, 270 degrees |
| Drift | 20, Dir(1); from round 11 on all images are rotated by 90 degrees |

Accuracies of the personalized model on the client's own test samples are percentages after the last
round, means over clients, ± half of the 95 % interval over seeds. What the personalized model is
differs: some rows score what a client receives, others a model after local training (`fedasync`,
`fedas`, `apple`) or fine-tuning (`fedbabu`, `fedavg_ft`); each algorithm's page says which. With
100 sampled clients, all of them train in each round of `local` and `pfedme`, and compute something
in `ccvr`, `fedala`, `feddbe`, `floco`, `spfl` and `spfl_w`.

The mean rank is over the settings, 1 is the best; by the Nemenyi test at 5 %, mean ranks that
differ by less than {reach:.0f} do not differ significantly. MB up are those of a client in a round
of the first setting. On the site, a click on a heading sorts the table.
[leaderboard.csv](leaderboard.csv) has each cell by seed with the command that repeats it.{times}

{table}

{edge}

{left_out}

## How to add a row

Run a study of the new algorithms with the same preset, then make this page from the folders of all
studies:

<!-- needs: minutes -->
```bash
python -m experiments.study --preset=study/leaderboard --data_dir=DATA \\
    --algorithms=fedas,fedcp --output_dir=runs/more
python -m tools.leaderboard docs/leaderboard runs/leaderboard runs/more
```

[Comparing algorithms](../comparing.md) says how rows are tuned alike, and how orders are tested.
"""
TIMINGS = "timings.json"
TIMES = """

Round is the time of a round divided by FedAvg's, on random images of a setting of this size, and
Compile the time of compilation in seconds: {turns}, on {machine}
([timings.json](timings.json), of `experiments.benchmark --case=i`). Ratios within a third of each
other are not told apart."""
Cells = Mapping[tuple[str, str], Run]  # by algorithm and setting


def load(folders: Sequence[Path]) -> dict[tuple[str, str], Run]:
    """Return the finished cells of studies.

    Raises:
      InputError: no finished cell, or one of two studies.
    """
    found: dict[tuple[str, str], Run] = {}
    for folder in folders:
        for summary in sorted(folder.glob("*/*/*/summary.json")):
            setting = summary.parts[-4]
            if setting == TUNING or setting not in SETTINGS:
                continue
            run = read(summary.parent)
            if (run.algorithm, setting) in found:
                raise pfl.InputError(f"{run.algorithm}, {setting} is in two of the folders.")
            found[run.algorithm, setting] = run
    if not found:
        raise pfl.InputError(f"{', '.join(map(str, folders))} has no finished cell of the study.")
    return found


def tried(folders: Sequence[Path]) -> list[float]:
    """Return the learning rates that each row of the studies tried.

    Raises:
      InputError: no such file, or rows that tried different ones.
    """
    found: dict[frozenset[float], Path] = {}
    for folder in folders:
        for file in sorted(folder.glob(f"{TUNING}/*/*/sweep.csv")):
            with file.open(encoding="utf-8") as lines:
                rates = frozenset(float(one["learning_rate"]) for one in csv.DictReader(lines))
            found.setdefault(rates, file)
    if not found:
        raise pfl.InputError(f"{', '.join(map(str, folders))} has no {TUNING}/*/*/sweep.csv.")
    if len(found) > 1:
        first, second, *_ = found.values()
        raise pfl.InputError(f"{first} and {second} have different learning rates.")
    return sorted(next(iter(found)))


def timings(folder: Path) -> dict[str, Any] | None:
    """Return the measured case of the benchmark, if its file is in the folder.

    Raises:
      InputError: another case, or one of the tiny workload.
    """
    file = folder / TIMINGS
    if not file.exists():
        return None
    measured = json.loads(file.read_text(encoding="utf-8")).get("i")
    if measured is None or measured["quick"]:
        raise pfl.InputError(f"{file} is not of `experiments.benchmark --case=i` in full size.")
    return measured


def accuracies(cells: Cells, name: str) -> np.ndarray:
    """Return percent after the last round, [settings, S]; NaN for a cell that is missing."""
    seeds = len(next(iter(cells.values())).seeds)
    nothing = np.full(seeds, np.nan)
    rows = [cells[name, one].result.curve()[:, 0, -1] if (name, one) in cells else nothing
            for one in SETTINGS]  # fmt: skip
    return 100 * np.array(rows, float)


def select(cells: Cells) -> tuple[list[str], dict[str, str]]:
    """Return the algorithms of the table, the best mean rank first, and why others are not in it.

    Rows are left out that lack a setting, score only some of the clients, or have the numbers of
    another row.

    Raises:
      InputError: no row is complete.
    """
    chosen: dict[str, np.ndarray] = {}
    left_out: dict[str, str] = {}
    first = [name for name in ("local", "fedavg", "fedavg_ft") if (name, "dirichlet") in cells]
    for name in dict.fromkeys([*first, *sorted({name for name, _ in cells})]):
        values = accuracies(cells, name)
        runs = [cells[name, one] for one in SETTINGS if (name, one) in cells]
        same = [one for one, other in chosen.items() if np.array_equal(values, other)]
        if np.isnan(values).any():
            left_out[name] = "it lacks a setting"
        elif any(len(run.summary["scored_clients"]) < run.num_clients for run in runs):
            left_out[name] = "it has models for some of the clients"
        elif same:
            left_out[name] = f"the same numbers as `{same[0]}`"
        else:
            chosen[name] = values
    left_out |= {name: "not run" for name in pfl.core.ALGORITHMS if not {name} & {
        one for one, _ in cells}}  # fmt: skip
    if not chosen:
        raise pfl.InputError(f"No algorithm has finished cells of all {len(SETTINGS)} settings.")
    names = sorted(chosen)
    ranks = ranking(cells, names).mean_ranks
    return [names[i] for i in np.argsort(ranks, kind="stable")], dict(sorted(left_out.items()))


def ranking(cells: Cells, names: Sequence[str]) -> Ranking:
    """Return the ranking of the algorithms by their means over seeds."""
    means = np.array([accuracies(cells, name).mean(axis=1) for name in names]).T
    return Ranking(names, list(SETTINGS), means)


def table(cells: Cells, names: Sequence[str], measured: dict[str, Any] | None = None) -> Table:
    """Return the table of the algorithms in this order, with the benchmark's times if measured."""
    ranks = ranking(cells, names).mean_ranks
    body = [
        [
            f"[`{name}`](../algorithms/{page(name)}.md)",
            f"{rank:.1f}",
            *map(mean_with_interval, accuracies(cells, name)),
            f"{cells[name, 'dirichlet'].summary['traffic_mb_per_client_round']['up']:.2f}",
        ]
        for name, rank in zip(names, ranks, strict=True)
    ]
    heading = ["Algorithm", "Mean rank", *SETTINGS.values(), "MB up"]
    if measured is not None:
        times, heading = measured["timings"], [*heading, "Round", "Compile"]
        ratios = {one["what"]: one["value"] for one in measured["ratios"]}
        for name, row in zip(names, body, strict=True):
            ratio = ratios.get(of_fedavg(name), 1.0)  # FedAvg itself has none
            known = name in times
            row += [f"{ratio:.2f}", f"{times[name]['prepare']:.1f}"] if known else [MISSING] * 2
    return Table.of_cells(heading, body)


def at_edge(cells: Cells, names: Sequence[str]) -> str:
    """Return a sentence on the rows that choose the smallest learning rate in all settings."""
    rates = {name: {cells[name, one].summary["training"]["learning_rate"] for one in SETTINGS}
             for name in names}  # fmt: skip
    lowest = min(set().union(*rates.values()))
    found = [f"`{name}`" for name in sorted(names) if rates[name] == {lowest}]
    if not found or len(set().union(*rates.values())) == 1:
        return ""
    return (
        f"Smaller learning rates than {lowest:g} may suit these rows, which choose it everywhere: "
        f"{', '.join(found)}."
    )


def page(name: str) -> str:
    """Return the name of an algorithm's page, which may describe several."""
    folder = Path(__file__).parents[1] / "docs" / "algorithms"
    if (folder / f"{name}.md").exists():
        return name
    return next(one.stem for one in sorted(folder.glob("*.md")) if f"`{name}`" in one.read_text())


def command(run: Run) -> str:
    """Return the command that repeats a run: its flags that differ from their defaults."""
    usual, words = flags.parse(["run"]), []
    for group in run.config["flags"].values():
        for name, value in group.items():
            if name in identity.NEUTRAL or name not in usual or value == usual[name].default:
                continue
            if name in flags.repeated():
                words += [f"--{name}={word}" for word in value]
            elif isinstance(value, bool):
                words.append(f"--{'' if value else 'no'}{name}")
            else:
                text = ",".join(map(str, value)) if isinstance(value, list) else value
                words.append(f"--{name}={text}")
    return f"python -m experiments.run {shlex.join(words)}"


def lines(cells: Cells) -> str:
    """Return the CSV file: a line for each cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    seeds = next(iter(cells.values())).seeds
    columns = [f"accuracy_percent_seed_{seed}" for seed in seeds]
    writer.writerow(["algorithm", "setting", *columns, "learning_rate", "command"])
    for name in sorted({name for name, _ in cells}):
        for setting, values in zip(SETTINGS, accuracies(cells, name).tolist(), strict=True):
            if (name, setting) in cells:
                run = cells[name, setting]
                rate = run.summary["training"]["learning_rate"]
                numbers = [f"{value:.4f}" for value in values]
                writer.writerow([name, setting, *numbers, rate, command(run)])
    return file.getvalue()


def write(folder: Path, cells: Cells, rates: Sequence[float]) -> None:
    """Write the page and the CSV file; the cells' rows tried these learning rates."""
    run, measured = next(iter(cells.values())), timings(folder)
    names, left_out = select(cells)
    *most, last = (f"{rate:g}" for rate in rates)
    times = ""
    if measured is not None:
        turns = len(measured["timings"]["fedavg"]["seconds"])
        times = TIMES.format(
            turns="one turn" if turns == 1 else f"medians of {turns} turns",
            machine=measured["machine"]["processor"],
        )
    reasons = [f"`{name}` ({why})" for name, why in left_out.items()]
    text = TEXT.format(
        count=len(names), rounds=run.result.rounds, seeds=len(run.seeds),
        rates=f"{', '.join(most)} and {last}", times=times,
        reach=ranking(cells, names).critical_difference(), edge=at_edge(cells, names),
        table=table(cells, names, measured).to_markdown(),
        left_out=f"Not in the table: {', '.join(reasons)}." if reasons else "",
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    write_text(folder / "README.md", text)
    write_text(folder / "leaderboard.csv", lines(cells))


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    if len(argv) < 3:
        raise pfl.InputError("Give the folder of the page, then those of finished studies.")
    folder, *studies = map(Path, argv[1:])
    cells = load(studies)
    write(folder, cells, tried(studies))
    print(f"{len(cells)} cells: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
