"""The leaderboard of docs: `python -m tools.leaderboard docs/leaderboard`.

Writes `README.md` and its pictures from the files below `cells`, which `tools.leaderboard_queue`
makes, and from `timings.json`, the output of case i of `tools.benchmark`. The same files give the
same page.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedjax_pfl as pfl
from experiments.cli import shell
from experiments.outputs.run_files import write_text
from fedjax_pfl.data.files import read_json
from fedjax_pfl.results.intervals import mean_with_interval
from fedjax_pfl.results.notes import LOCAL
from fedjax_pfl.results.table import MISSING, Table
from fedjax_pfl.utils.metric_names import ACCURACY
from tools import arguments, leaderboard_pictures
from tools.benchmark.cases import of_fedavg
from tools.leaderboard_board import Board, by_client, edges, harmed, remarks, scores
from tools.leaderboard_cells import MOMENTS, kept, rows, tasks

CIFAR = "CIFAR-10 (JPEG, 125 images, `cnn`, one local epoch, the first rows alone)"
SETTINGS = {
    "dirichlet": ("Dirichlet", "Fashion-MNIST, 20 clients, Dir(0.1) over classes"),
    "grouped": ("Grouped", "Fashion-MNIST, 20 clients in four groups, 80 % of their samples of the "
                "group's dominant classes"),
    "pathological": ("Pathological", "Fashion-MNIST, 20 clients with two classes each"),
    "sampled": ("100 clients, sampled", "Fashion-MNIST, 100 clients, Dir(0.5); a fifth takes part "
                "in each round"),
    "features": ("Feature shift", "Fashion-MNIST, 20 clients, Dir(1); four groups see images "
                 "rotated by 0, 90, 180, 270 degrees"),
    "drift": ("Drift", "Fashion-MNIST, 20 clients, Dir(1); from round 11 on all images are rotated "
              "by 90 degrees"),
    "ag_news": ("AG News", "AG News, 20 clients, Dir(0.3); `fasttext` with 16 units"),
    "cifar10_dirichlet": ("CIFAR-10, Dirichlet", f"{CIFAR}, 20 clients, Dir(0.1)"),
    "cifar10_pathological": ("CIFAR-10, pathological", f"{CIFAR}, 20 clients with two classes "
                             "each"),
    "cifar10_sampled": ("CIFAR-10, 100 clients, sampled", f"{CIFAR}, 100 clients, Dir(0.5); a "
                        "fifth takes part in each round"),
}  # fmt: skip
# The rivals that each paper's main table places below its method in most columns of skewed labels.
PAPERS = {
    "feddwa": "local fedavg fedprox fedavgm fedavg_ft sfl perfedavg pfedme cfl fedrod fedamp "
              "fedfomo l2c",
    "waffle": "local fedavg scaffold apfl",
    "cwfedavg": "fedavg fedprox fedfomo cfl ifca",
    "spfl": "fedavg fedupdate perfedavg_spfl pfedme spfl_w",
    "plga": "fedavg fedasync perfedavg_async",
    "pfedla": "local fedavg perfedavg pfedme pfedhn fedrep fedfomo",
    "heurpfedla": "local fedavg perfedavg pfedme pfedhn fedrep fedfomo",
}  # fmt: skip
FEW = 12  # of the best, in the picture
BASELINES = ("local", "fedavg", "fedavg_ft")
TIMINGS = "timings.json"
TEXT = """\
# Leaderboard

![Left: mean ranks, of the first rows, papers' methods and baselines. Right: accuracy by time of a
round.](ranks.png)

*The ranks of {count} of {asked} algorithms in {settings} settings, each tuned by the same rule; the
five papers' methods and three baselines are orange.*

## What may be concluded

{conclusions}

Settings that deal the samples of one data set differently are no independent tasks: true p-values
are larger. Not shown are longer runs, other networks, and what is [not in
the table](#not-in-the-table).

## How it was measured

- **Trials.** In each setting each row tries 15 combinations on validation samples, with one seed:
  five learning rates and three values of its main hyperparameter, one of them published or our
  default ([table]({table_file})). A row without one tries fifteen learning rates over the same
  range. Other hyperparameters have their defaults.
- **Moments.** A model is scored as the client *received* it, and when a copy has been *trained* for
  one more round. Each moment has the combination that is best on its own validation samples.
  *Chosen* is the moment that is better on validation samples: to train once more is a choice, and
  FedAvg has it as all others. What a client holds without the server, as of `local` or `ditto`, is
  received; `fedavg_ft` is received as fine-tuned for a tuned number of epochs.
- **Scores** are of three other seeds (± half of the 95 % interval), on test samples, after the last
  round. The partition is that of the tuning. The [cells](cells) have each client's accuracy, all
  trials, and the commands that repeat them; they took {spent:.1f} CPU hours.

| Setting | Clients |
|---|---|
{described}

Clients have at most 300 samples, a fifth for validation; an `mlp` with one hidden layer trains for
20 rounds of two local epochs.

## The papers' claims

Each paper's main table has its method above these rivals in most columns. By means over clients and
seeds, however small the difference, it is here:

{claims}

## All rows

Means over the settings. Rank: of *chosen*, 1 is the first, with its range. Worst: the worst tenth
of clients. Harmed: percent of [pairs](../comparing.md#harmed-clients) of client and seed that are
worse than `local` as received, or FedAvg's trained model, by more than a standard error; of equal
models about 25. MB: up and down, of a client in a round of the first setting. Round: its time
divided by FedAvg's (within a third it is noise); Compile: seconds, on {machine}. Self-weight: a
client's weight on its own model in the last rounds, where recorded; at 1 it trains
alone.{edges}{remarks}

{overall}

{by_setting}

## Not in the table

{absent}
- Algorithms of adapters have a [table of their own](../adapters_measured.md).

## How to add or repeat a row

Change its line of `leaderboard.toml`, or delete its files below `cells`, then run the queue, which
measures what is missing and may be stopped at any time:

<!-- needs: minutes -->
```bash
python -m tools.leaderboard_queue docs/leaderboard/cells --data_dir=DATA
python -m tools.leaderboard docs/leaderboard
```
"""


class Timings(NamedTuple):
    """What case i of the benchmark measured, by algorithm.

    Attributes:
      rounds: times of a round, in FedAvg's; compile: seconds.
      machine: its processor.
    """

    rounds: dict[str, float]
    compile: dict[str, float]
    machine: str


def timings(folder: Path) -> Timings:
    """Return the measured case of the benchmark.

    Raises:
      InputError: no file, another case, or one of the tiny workload.
    """
    measured = read_json(folder / TIMINGS).get("i")
    if measured is None or measured["quick"]:
        raise pfl.InputError(
            f"{folder / TIMINGS} is not of `tools.benchmark --case=i` in full size."
        )
    ratios = {one["what"]: one["value"] for one in measured["ratios"]}
    rounds = {name: ratios.get(of_fedavg(name), 1.0) for name in measured["timings"]}
    compile_ = {name: one["prepare"] for name, one in measured["timings"].items()}
    return Timings(rounds, compile_, measured["machine"]["processor"])


def overall(board: Board, measured: Timings) -> Table:
    """Return the table of means over settings, with the benchmark's times."""
    heading = ["Algorithm", "Rank", "Range", *(f"{m}" for m in ("Received", "Trained", "Chosen")),
               "Worst, received", "Worst, trained", "Harmed vs local, received",
               "Harmed vs local, trained", "Harmed vs FedAvg, received",
               "Harmed vs FedAvg, trained", "Self-weight", "MB", "Round", "Compile"]  # fmt: skip
    ranking, body = board.ranking("chosen", board.names, board.settings), []
    for k, name in enumerate(board.names):
        own = [board.cells[s, name] for s in board.settings]
        line: list[float] = [np.mean([scores(one, m).mean() for one in own])
                             for m in (*MOMENTS, "chosen")]  # fmt: skip
        line += [100 * np.mean([ACCURACY.worst_tenth(by_client(one, m)).mean() for one in own])
                 for m in MOMENTS]  # fmt: skip
        for base, at in (("local", "received"), ("fedavg", "trained")):
            line += [np.mean([harmed(one, m, board.cells[one.setting, base], at) for one in own])
                     for m in MOMENTS]  # fmt: skip
        ranks, itself = ranking.ranks[:, k], board.self_weights(name).mean()
        body.append([
            f"[`{name}`](../algorithms/{name}.md){' *' * board.changed(name)}",
            f"{ranks.mean():.1f}", f"{ranks.min():.0f}-{ranks.max():.0f}",
            *(f"{number:.2f}" for number in line[:5]), *(f"{number:.0f}" for number in line[5:]),
            MISSING if np.isnan(itself) else f"{itself:.2f}",
            f"{own[0].mb_up + own[0].mb_down:.2f}",
            *(MISSING if name not in known else f"{known[name]:{form}}"
              for known, form in ((measured.rounds, ".2f"), (measured.compile, ".1f"))),
        ])  # fmt: skip
    return Table.of_cells(heading, body)


def by_setting(board: Board, moment: str) -> Table:
    """Return the accuracies at a moment, ± half of the 95 % interval over seeds, of all rows that
    have some."""
    others = [name for name in rows() if name not in board.names]
    body = []
    for name in (*board.names, *others):
        cells = [board.scored_cell(s, name) for s in board.finished]
        if any(cells):
            shown = [mean_with_interval(scores(one, moment)) if one else MISSING for one in cells]
            body.append([f"`{name}`", *shown])
    return Table.of_cells(["Algorithm", *(SETTINGS[s][0] for s in board.finished)], body)


def conclusions(board: Board) -> str:
    """Return what means and tests say, a paragraph for each moment and group of settings."""

    def mean(name: str, moment: str) -> float:
        return float(np.mean([scores(board.cells[s, name], moment) for s in board.settings]))

    chosen = {name: mean(name, "chosen") for name in board.names}
    top, last = max(chosen, key=chosen.__getitem__), min(chosen, key=chosen.__getitem__)
    found = [
        f"FedAvg's model is at {mean('fedavg', 'received'):.1f} % as the client received it, and "
        f"at {mean('fedavg', 'trained'):.1f} % after one more local training. With the moment "
        f"chosen for each, all rows are between {chosen[last]:.1f} (`{last}`) and "
        f"{chosen[top]:.1f} % (`{top}`), `local` at {chosen['local']:.1f}."
    ]
    alone = {name: int((board.self_weights(name) > LOCAL).sum()) for name in board.names}
    near = ", ".join(f"`{name}` ({count})" for name, count in alone.items() if count)
    if near:
        found.append(
            f"Clients end with a mean self-weight above {LOCAL:.0%}, which is local training in "
            f"effect, in so many of the {len(board.settings)} settings: {near}."
        )
    groups = [board.settings, *[board.finished] * (len(board.finished) > len(board.settings))]
    for settings, moment in itertools.product(groups, ("chosen", *MOMENTS)):
        names = board.scored(settings)
        ranking = board.ranking(moment, names, settings)
        ranks = dict(sorted(zip(names, ranking.mean_ranks, strict=True), key=lambda one: one[1]))
        order, reach = list(ranks), ranking.critical_difference()
        worse = [name for name in order if ranks[name] > ranks[order[0]] + reach]
        found.append(
            f"**{moment.capitalize()}, {len(names)} rows in {len(settings)} settings.** Friedman's "
            f"test: p = {ranking.friedman().p_value:.1g}. By Nemenyi's critical difference at 5 %, "
            f"{reach:.1f} ranks, {listed(worse) or 'no row'} can be told apart from the first, "
            f"{listed(order[:1])}."
        )
    return "\n\n".join(found)


def claims(board: Board) -> str:
    """Return how often each paper's method exceeds its rivals, and which of them exceed it."""
    found = []
    for name, words in PAPERS.items():
        own = [one for s in board.finished if (one := board.scored_cell(s, name))]
        if not own:
            continue
        all_ = words.split()
        rivals = [one for one in all_ if all(board.scored_cell(c.setting, one) for c in own)]
        text = f"- `{name}`, {len(rivals)} of {len(all_)} rivals run ({listed(rivals)})."
        for moment in MOMENTS if rivals else ():
            above = [[one for one in rivals if scores(board.cells[c.setting, one], moment).mean()
                      >= scores(c, moment).mean()] for c in own]  # fmt: skip
            times = Counter(itertools.chain(*above)).most_common()
            ahead = ", ".join(f"`{one}` ({k})" for one, k in times if 2 * k > len(own))
            won = [SETTINGS[c.setting][0] for c, a in zip(own, above, strict=True) if not a]
            where = f" ({'; '.join(won)})" * bool(won)
            text += (f" {moment.capitalize()}: above all in {len(won)} of {len(own)} settings"
                     f"{where}; in most behind {ahead or 'none'}.")  # fmt: skip
        found.append(text)
    return "\n".join(found)


def listed(names: Sequence[str]) -> str:
    """Return names as inline code."""
    return ", ".join(f"`{name}`" for name in names)


def absent(board: Board) -> str:
    """Return why algorithms are not in the ranking, and what is not run at which cost."""
    lines = [f"- `{name}`: {row.out}." for name, row in rows().items() if row.out]
    errors = {name: f"{s}: {one.error}" for (s, name), one in board.cells.items()
              if one.error and s in board.settings}  # fmt: skip
    lines += [f"- `{name}`: {text}" for name, text in errors.items()]
    asked = dict.fromkeys(one.algorithm for one in board.tasks)
    later = [name for name in asked if name not in (*board.names, *errors)]
    old = list(filter(board.changed, board.names))
    groups = ("Not run in all settings", later), ("Measured before their changes, marked *", old)
    lines += [f"- {what}: {listed(names)}." for what, names in groups if names]
    for setting, hours in board.hours().items():
        time = "an unknown number of" if np.isnan(hours) else f"about {hours:.1f}"
        lines.append(f"- What is not run in {SETTINGS[setting][0]} takes {time} CPU hours.")
    return "\n".join(lines)


def write(folder: Path, board: Board) -> None:
    """Write the page and its pictures."""
    measured, names = timings(folder), board.names
    text = TEXT.format(
        count=len(names), settings=len(board.settings),
        asked=len({one.algorithm for one in board.tasks}),
        spent=sum(one.cpu_seconds for one in board.cells.values()) / 3600,
        conclusions=conclusions(board),
        claims=claims(board), edges=edges(board), remarks=remarks(board),
        table_file="../../tools/leaderboard.toml", absent=absent(board),
        described="\n".join(f"| {' | '.join(SETTINGS[s])} |" for s in board.finished),
        machine=measured.machine,
        overall=overall(board, measured).to_markdown(),
        by_setting="\n\n".join(f"### {moment.capitalize()}\n\n"
                               f"{by_setting(board, moment).to_markdown()}" for moment in MOMENTS),
    )  # fmt: skip
    marked = (*BASELINES, *PAPERS)
    shown = [name for k, name in enumerate(names) if k < FEW or name in marked]
    ranking = board.ranking("chosen", names, board.settings)
    leaderboard_pictures.picture(
        folder / "ranks.png", ranking, [measured.rounds.get(name, np.nan) for name in names],
        shown, marked,
    )  # fmt: skip
    write_text(folder / "README.md", text)


@shell.script()
def main(argv: list[str]) -> int:
    """Run the command."""
    folder = arguments.parse("leaderboard", __doc__, argv, ["folder"]).folder
    board = Board.of(kept(folder / "cells"), tasks())
    write(folder, board)
    print(f"{len(board.names)} algorithms in {len(board.settings)} settings: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
