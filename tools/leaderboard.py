"""The leaderboard of docs: `python -m tools.leaderboard docs/leaderboard [STUDY...]`.

Writes `README.md` from `leaderboard.csv`, which has each cell: the accuracies, the tuning and the
exact command. The finished cells of studies with the preset study/leaderboard are added to the file
first, in place of earlier cells of the same algorithm and setting. The same cells give the same
files. With `timings.json` in the folder, the output of case i of `tools.benchmark`, the table
has times, too.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_pfl as pfl
from experiments.cli import shell
from experiments.outputs.run_files import write_text
from fedjax_pfl.results.intervals import mean_with_interval
from fedjax_pfl.results.significance import Ranking
from fedjax_pfl.results.table import MISSING, Table
from tools import arguments
from tools.benchmark.cases import of_fedavg
from tools.leaderboard_cells import CELLS, SETTINGS, Cells, as_csv, check, kept, load

REFUSED = {"fedbn": "`mlp` has no batch normalization"}
# Rows that were measured before the algorithm or its defaults changed; a new row removes its line.
EARLIER = {
    "ccvr": "by `per_class=200`, `epochs=1`",
    "pfedfda": "its revision 1, without a tolerance for ties of beta",
    "pfl_da": "its revision 1, with the own head trained first",
}
TEXT = """\
# Leaderboard

{count} algorithms in six settings on Fashion-MNIST, as the preset `study/leaderboard` runs them:
300 images a client, of which a fifth are validation samples, an `mlp` with one hidden layer,
{rounds} rounds of two local epochs, {seeds} seeds. In each setting each row tries the learning
rates {rates} with one seed, and keeps the one with the best validation
accuracy. All other hyperparameters have their defaults: a place in this table says little about
other data.

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
differs: most rows score what a client receives,{moments}
and differences of several points may come of this alone. Where a fifth of 100 clients is sampled,
all 100 nevertheless train in each round of `local` and `pfedme`, and compute something in `ccvr`,
`fedala`, `feddbe`, `floco`, `spfl` and `spfl_w`.

The mean rank is over the settings, 1 is the best; by the Nemenyi test at 5 %, mean ranks that
differ by less than {reach:.0f} do not differ significantly. The settings share one data set, so
even larger differences may be chance. MB up are those of a client in a round of the first setting.
[leaderboard.csv](leaderboard.csv) has each cell by seed with the command that repeats it.{times}

{table}

{edge}

{earlier}

{left_out}

## How to add a row

Run a study of the new algorithms with the same preset, then add its cells to the file and to this
page:

<!-- needs: minutes -->
```bash
python -m experiments.study --preset=study/leaderboard --data_dir=DATA \\
    --algorithms=fedas,fedcp --output_dir=runs/more
python -m tools.leaderboard docs/leaderboard runs/more
```

[Comparing algorithms](../comparing.md) says how rows are tuned alike, and how orders are tested.
"""
# What follows "Moment of scoring" on pages, and how the table's text names it.
MOMENTS = {
    "the model that the client trained last": "others the model that it trained last",
    "the model that the client receives, after further local steps": "others one after fine-tuning",
}
TIMINGS = "timings.json"
TIMES = """

Round is the time of a round divided by FedAvg's, on random images of a setting of this size, and
Compile the time of compilation in seconds: {turns}, on {machine}
([timings.json](timings.json), of `tools.benchmark --case=i`). Ratios within a third of each
other are not told apart."""


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
        raise pfl.InputError(f"{file} is not of `tools.benchmark --case=i` in full size.")
    return measured


def accuracies(cells: Cells, name: str) -> np.ndarray:
    """Return percent after the last round, [settings, S]; NaN for a cell that is missing."""
    seeds = next(iter(cells.values())).accuracies
    nothing = dict.fromkeys(seeds, np.nan)
    rows = [cells[name, one].accuracies if (name, one) in cells else nothing for one in SETTINGS]
    return np.array([[row[seed] for seed in seeds] for row in rows], float)


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
        own = [cells[name, one] for one in SETTINGS if (name, one) in cells]
        same = [one for one, other in chosen.items() if np.array_equal(values, other)]
        if np.isnan(values).any():
            left_out[name] = "it lacks a setting"
        elif not all(one.scored for one in own):
            left_out[name] = "it has models for some of the clients"
        elif same:
            left_out[name] = f"the same numbers as `{same[0]}`"
        else:
            chosen[name] = values
    run = {name for name, _ in cells}
    absent = [name for name in pfl.core.ALGORITHMS if name not in run]
    left_out |= {name: REFUSED.get(name, "not run") for name in absent}
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
            MISSING if (up := cells[name, "dirichlet"].mb_up) is None else f"{up:.2f}",
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
    rates = {name: {cells[name, one].learning_rate for one in SETTINGS} for name in names}
    lowest = min(set().union(*rates.values()))
    found = [f"`{name}`" for name in sorted(names) if rates[name] == {lowest}]
    if not found or len(set().union(*rates.values())) == 1:
        return ""
    return (
        f"Smaller learning rates than {lowest:g} may suit these rows, which choose it everywhere: "
        f"{', '.join(found)}."
    )


def before_changes(names: Sequence[str]) -> str:
    """Return a sentence on the rows that were measured before a change."""
    found = [f"`{name}` ({EARLIER[name]})" for name in sorted(names) if name in EARLIER]
    return f"Measured before a change: {', '.join(found)}." if found else ""


def moments(names: Sequence[str]) -> str:
    """Return which rows score another model than the received one, by the algorithms' pages."""
    folder, lines = Path(__file__).parents[1] / "docs" / "algorithms", []
    texts = {name: (folder / f"{page(name)}.md").read_text() for name in sorted(names)}
    for sentence, said in MOMENTS.items():
        line = f"Moment of scoring: {sentence}"
        found = [f"`{name}`" for name, text in texts.items() if line in text]
        lines += [f"\n{said} ({', '.join(found)}),"] if found else []
    return "".join(lines)


def page(name: str) -> str:
    """Return the name of an algorithm's page, which may describe several."""
    folder = Path(__file__).parents[1] / "docs" / "algorithms"
    if (folder / f"{name}.md").exists():
        return name
    return next(one.stem for one in sorted(folder.glob("*.md")) if f"`{name}`" in one.read_text())


def write(folder: Path, cells: Cells) -> None:
    """Write the page and the CSV file."""
    check(cells)
    any_cell, measured = next(iter(cells.values())), timings(folder)
    names, left_out = select(cells)
    *most, last = (f"{rate:g}" for rate in any_cell.tried)
    times = ""
    if measured is not None:
        turns = len(measured["timings"]["fedavg"]["seconds"])
        times = TIMES.format(
            turns="one turn" if turns == 1 else f"medians of {turns} turns",
            machine=measured["machine"]["processor"],
        )
    reasons = [f"`{name}` ({why})" for name, why in left_out.items()]
    text = TEXT.format(
        count=len(names), rounds=any_cell.flags()["rounds"].value, seeds=len(any_cell.accuracies),
        rates=" and ".join([", ".join(most), last] if most else [last]), times=times,
        reach=ranking(cells, names).critical_difference(), edge=at_edge(cells, names),
        table=table(cells, names, measured).to_markdown(),
        earlier=before_changes(names), moments=moments(names),
        left_out=f"Not in the table: {', '.join(reasons)}." if reasons else "",
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    write_text(folder / "README.md", text)
    write_text(folder / CELLS, as_csv(cells))


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    args = arguments.parse("leaderboard", __doc__, argv, ["folder"], "studies")
    folder = args.folder
    cells = kept(folder) | load(args.studies)
    if not cells:
        raise pfl.InputError(f"{folder} has no {CELLS}: give folders of finished studies.")
    write(folder, cells)
    print(f"{len(cells)} cells: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
