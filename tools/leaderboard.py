"""The leaderboard of docs: `python -m tools.leaderboard docs/leaderboard runs/leaderboard ...`.

Takes the finished cells of studies with the preset study/leaderboard, which may have different
algorithms, and writes `README.md` and `leaderboard.csv`, with the exact command of every cell. The
same cells give the same files.
"""

import csv
import io
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import fedjax_pfl as pfl
from experiments.cli import flags, identity, shell
from experiments.figures.loading import read
from experiments.figures.runs import Run
from experiments.outputs.run_files import write_text
from experiments.study import TUNING
from fedjax_pfl.results.intervals import mean_with_interval
from fedjax_pfl.results.table import Table

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

{count} of {known} algorithms in six settings on scikit-learn's digits, as
`python -m experiments.study --preset=study/leaderboard` runs them: the same network (`mlp`), {rounds} rounds, {seeds} seeds.
Each row tries the same {tried} learning rates in each setting on a fifth of every client's training samples, and runs with
the best of them. All other hyperparameters have their defaults, so methods whose defaults are for larger networks and
data, or for other numbers of rounds, are at a disadvantage. Digits are a small and easy data set: a place in
this table says little about others.

| Setting | Clients |
|---|---|
| Dirichlet | 20, Dir(0.1) over classes |
| Grouped | 20 in four groups, 80 % of their samples of the group's dominant classes |
| Pathological | 20 with two classes each |
| 100 clients, sampled | 100, Dir(1); a fifth takes part in a round |
| Feature shift | 20, Dir(1); four groups see images turned by 0, 90, 180, 270 degrees |
| Drift | 20, Dir(1); from round 16 on all images are turned by a quarter |

Accuracy % of the personalized model on the client's own test samples, mean over clients after the last round, ± half of
the 95 % interval over seeds. Mean rank: over the settings, among the rows that have all of them; 1 is the best.
On the site a click on a heading sorts the table. [leaderboard.csv](leaderboard.csv) has each cell by seed with the
exact command that repeats it.

{table}

{missing}

## How to add a row

A study of further algorithms with the same preset and this page from all of them:

<!-- needs: minutes -->
```bash
python -m experiments.study --preset=study/leaderboard --algorithms=fedas,fedcp --output_dir=runs/more
python -m tools.leaderboard docs/leaderboard runs/leaderboard runs/more
```

[Comparing algorithms](../comparing.md) says how rows are tuned alike and tested, and
[all algorithms in small](../measured.md) has a table of all of them on images of clothes.
"""
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


def last(run: Run) -> np.ndarray:
    """Return the accuracies after the last round in percent, [S]."""
    return 100 * run.result.curve()[:, 0, -1].astype(float)


def ranks(cells: Cells) -> dict[str, float]:
    """Return the mean ranks of the algorithms with all settings."""
    names = sorted({name for name, _ in cells})
    whole = [name for name in names if all((name, one) in cells for one in SETTINGS)]
    if not whole:
        return {}
    means = np.array([[last(cells[name, one]).mean() for one in SETTINGS] for name in whole])
    mean = stats.rankdata(-means.round(6), axis=0).mean(axis=1)
    return dict(zip(whole, mean.tolist(), strict=True))


def table(cells: Cells) -> Table:
    """Return the table, the best mean rank first."""
    ranked, names = ranks(cells), sorted({name for name, _ in cells})
    names.sort(key=lambda name: ranked.get(name, np.inf))
    body = [
        [
            f"[`{name}`](../algorithms/{page(name)}.md)",
            f"{ranked[name]:.2f}" if name in ranked else "-",
            *(
                mean_with_interval(last(cells[name, one])) if (name, one) in cells else "-"
                for one in SETTINGS
            ),
        ]
        for name in names
    ]
    return Table.of_cells(["Algorithm", "Mean rank", *SETTINGS.values()], body)


def page(name: str) -> str:
    """Return the name of an algorithm's page."""
    folder = Path(__file__).parents[1] / "docs" / "algorithms"
    if (folder / f"{name}.md").exists():
        return name
    return next(one.stem for one in sorted(folder.glob("*.md")) if f"`{name}`" in one.read_text())


def lines(cells: Cells) -> str:
    """Return the CSV file: a line for each cell and seed."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["algorithm", "setting", "seed", "accuracy_percent", "learning_rate", "command"])
    for (name, setting), run in sorted(cells.items(), key=_place):
        rate, words = run.settings["learning_rate"], command(run)
        for seed, value in zip(run.seeds, last(run).tolist(), strict=True):
            writer.writerow([name, setting, seed, f"{value:.4f}", rate, words])
    return file.getvalue()


def _place(item: tuple[tuple[str, str], Any]) -> tuple[str, int]:
    (name, setting), _ = item
    return name, list(SETTINGS).index(setting)


def write(folder: Path, cells: Cells, tried: int = 3) -> None:
    """Write the page and the CSV file."""
    run = next(iter(cells.values()))
    names, known = {name for name, _ in cells}, set(pfl.core.ALGORITHMS)
    absent = [f"`{name}`" for name in sorted(known - names)]
    some = sorted(name for name in names if name not in ranks(cells))
    missing = f"Not run yet: {', '.join(absent)}." if absent else ""
    if some:
        missing += f" Not in all settings: {', '.join(f'`{name}`' for name in some)}."
    text = TEXT.format(
        count=len(names), known=len(known), rounds=run.result.rounds, seeds=len(run.seeds),
        tried=tried, table=table(cells).to_markdown(), missing=missing.strip(),
    )  # fmt: skip
    write_text(folder / "README.md", text)
    write_text(folder / "leaderboard.csv", lines(cells))


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    if len(argv) < 3:
        raise pfl.InputError("Give the folder of the page, then those of finished studies.")
    folder, *studies = map(Path, argv[1:])
    cells = load(studies)
    folder.mkdir(exist_ok=True)
    write(folder, cells)
    print(f"{len(cells)} cells: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
