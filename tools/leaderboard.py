"""The leaderboard of docs: `python -m tools.leaderboard docs/leaderboard`.

Writes `README.md` and its pictures from the files below `cells`, which `tools.leaderboard_queue`
makes, and from `timings.json`, the output of case i of `tools.benchmark`. The same files give the
same page.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fedjax_pfl as pfl
from experiments.cli import shell
from experiments.outputs.run_files import write_text
from fedjax_pfl.data.files import read_json
from fedjax_pfl.results.intervals import mean_with_interval
from fedjax_pfl.results.table import MISSING, Table
from fedjax_pfl.utils.metric_names import ACCURACY
from tools import arguments, leaderboard_pictures
from tools import leaderboard_findings as findings
from tools.benchmark.cases import of_fedavg
from tools.leaderboard_board import (
    Board,
    chosen_moment,
    edges,
    harmed,
    harmed_by_seed,
    of_moment,
    remarks,
    scores,
    without_effect,
    without_score,
)
from tools.leaderboard_cells import FIRST, MOMENTS, Cell, kept, rows, tasks
from tools.leaderboard_findings import PAPERS, listed

CIFAR = "CIFAR-10 (JPEG, 125 images, `cnn`, one local epoch)"
NORM = "`pfedla_lenet_bn`, a small CNN with batch normalization"
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
    "redrawn_dirichlet": ("Dirichlet, redrawn", "as Dirichlet, with another draw of the partition"),
    "long_grouped": ("Grouped, 100 rounds", "as Grouped, with 100 rounds"),
    "cifar10_dirichlet": ("CIFAR-10, Dirichlet", f"{CIFAR}, 20 clients, Dir(0.1)"),
    "cifar10_pathological": ("CIFAR-10, pathological", f"{CIFAR}, 20 clients with two classes "
                             "each"),
    "cifar10_sampled": ("CIFAR-10, 100 clients, sampled", f"{CIFAR}, 100 clients, Dir(0.5); a "
                        "fifth takes part in each round"),
    "normalized_features": ("Feature shift, batch norm", f"as Feature shift; {NORM}"),
    "normalized_cifar10": ("CIFAR-10, batch norm", f"as CIFAR-10, pathological; {NORM}"),
}  # fmt: skip
FEW = 12  # of the best, in the picture
BASELINES = ("local", "fedavg", "fedavg_ft")
TIMINGS = "timings.json"
TEXT = """\
# Leaderboard

![Left: mean ranks. Right: accuracy by time of a round, in FedAvg's.](ranks.png)

*{count} rows in {settings} settings, all tuned by the same rule. Left, and named right: the first
{few}, the last, and in orange the papers' methods and three baselines.*

A model is scored as the client *received* it, and when a copy has been *trained* for one more
round. *Chosen* takes whichever of the two is better on validation samples.

{in_short}

## What may be concluded

The table shows *chosen*, and both moments of FedAvg.

{settings_table}

*Clearly*: the 95 % interval of the difference over three seeds, paired by seed, excludes 0. It is
not corrected for the number of rows: chance alone makes about {chance:.0f} of {count} clear on
each side. Twenty rounds do not converge everywhere: {slowest}. Ranks reward algorithms that are
fast.

{near_local}

{tests}

Of the first {few}, {trained} are chosen as trained in most settings.

**Another draw of clients.** {redrawn} Intervals are of seeds, with one partition for all of them.

Settings that deal the samples of one data set differently are no independent tasks: true p-values
are larger. Not shown are other networks, and what is [not in the table](#not-in-the-table).

## How it was measured

- **Trials.** In each setting each row tries 15 combinations on validation samples, with one seed:
  five learning rates and three values of its main hyperparameter, one of them published or our
  default ([table]({table_file})). A row without one tries fifteen learning rates over the same
  range. Other hyperparameters have their defaults. Wider grids may improve the rows that mostly
  choose an [end](#ends-of-grids). Some values train longer than FedAvg does, such as 10
  `head_epochs` or 20 `fine_tune_steps` (see *Steps*); the times below are of defaults.
- **Moments.** Each has the combination that is best on its own validation samples. To train once
  more is a choice, and FedAvg has it as all others: plain SGD on the task's loss, without an
  algorithm's own terms and rules. In {other_moments}. What a client holds without the server, as of
  `local` or `ditto`, is received; `fedavg_ft`, `fedprox_ft` and the heads of `fedrep` are received
  as fine-tuned.
- **Scores** are of three other seeds (± half of the 95 % interval), on test samples, after the last
  round. The partition is that of the tuning. The [cells](cells) have each client's accuracy, all
  trials, and the commands that repeat them; they took {spent:.1f} CPU hours.

| Setting | Clients |
|---|---|
{described}

Clients have at most 300 samples, of which a fifth is for validation, and 300 test samples (100 with
100 clients and with texts). The network is an `mlp` with one hidden layer where no other is named;
it trains for 20 rounds of two local epochs. {first} rows have further settings: another draw of a
partition, longer runs and CIFAR-10; {normalized}, networks with batch normalization.

## The papers' claims

Each paper's main table has its method above these rivals in more columns than below them, of those
with skewed labels. {alone} marks settings in which its clients nearly train alone. Here, of means:

{claims}

## All rows

Means over the settings. Rank: of *chosen*, 1 is the first, with its range. Trained in: settings in
which *chosen* is the trained model. Worst: the worst tenth of clients. Harmed: percent of
[pairs](../comparing.md#harmed-clients) of client and seed that are worse by more than a standard
error, of the model as received and as trained, than `local` as received and than FedAvg's trained
model; another seed of the same row harms {harmed}. Steps: minibatch gradients in a round, of
*chosen*, divided by FedAvg's, in one setting where they are kept, without what is done for scores
alone, such as fine-tuning. MB: up and down, of a client in a round of the first setting. Round: its
time divided by FedAvg's (within a third it is noise); Compile: seconds, on {machine}. Self-weight:
range over the settings of clients' mean weight on their own models in the last rounds, of *chosen*,
where recorded.{remarks}

{overall}

In the next tables t marks trained models that are *chosen*, and a star intervals beyond 100 %.

{by_setting}

### Notes on rows

{notes}

### Ends of grids

{edges}

{without_effect}

{without_score}

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
    heading = ["Algorithm", "Rank", "Range", "Trained in", "Received", "Trained", "Chosen",
               "Worst, received", "Worst, trained", "Received, harmed vs `local`",
               "Trained, harmed vs `local`",
               "Received, harmed vs FedAvg trained", "Trained, harmed vs FedAvg trained",
               "Self-weight", "Steps", "MB", "Round", "Compile"]  # fmt: skip
    ranking, body = board.ranking("chosen", board.names, board.settings), []
    for k, name in enumerate(board.names):
        own = [board.cells[s, name] for s in board.settings]
        line: list[float] = [np.mean([scores(one, m).mean() for one in own])
                             for m in (*MOMENTS, "chosen")]  # fmt: skip
        line += [100 * np.mean([ACCURACY.worst_tenth(one.scores[m].by_client).mean()
                                for one in own]) for m in MOMENTS]  # fmt: skip
        for base, at in (("local", "received"), ("fedavg", "trained")):
            theirs = [board.cells[s, base].scores[at].by_client for s in board.settings]
            line += [np.mean([harmed(one.scores[m].by_client, other, np.array(one.test_sizes))
                              for one, other in zip(own, theirs, strict=True)])
                     for m in MOMENTS]  # fmt: skip
        ranks, itself = ranking.ranks[:, k], board.self_weights(name)
        body.append([
            f"[`{name}`](../algorithms/{name}.md){' *' * board.changed(name)}",
            f"{ranks.mean():.1f}", f"{ranks.min():.0f}-{ranks.max():.0f}",
            str(sum(chosen_moment(one) == "trained" for one in own)),
            *(f"{number:.2f}" for number in line[:5]), *(f"{number:.0f}" for number in line[5:]),
            MISSING if np.isnan(itself).all() else
            f"{np.nanmin(itself):.2f}-{np.nanmax(itself):.2f}",
            steps(board, name), f"{own[0].mb_up + own[0].mb_down:.2f}",
            *(MISSING if name not in known else f"{known[name]:{form}}"
              for known, form in ((measured.rounds, ".2f"), (measured.compile, ".1f"))),
        ])  # fmt: skip
    return Table.of_cells(heading, body)


def steps(board: Board, name: str) -> str:
    """Return the local steps of *chosen* in FedAvg's, in the first setting that has them."""
    for setting in board.finished:
        cells = [board.scored_cell(setting, one) for one in (name, "fedavg")]
        own, usual = (of_moment(one, "chosen").steps if one else None for one in cells)
        if own is not None and usual:
            return f"{own / usual:.2f}"
    return MISSING


def by_setting(board: Board, moment: str) -> Table:
    """Return the accuracies at a moment, ± half of the 95 % interval over seeds, of all rows that
    have some."""
    others = [name for name in rows() if name not in board.names]
    body = []
    for name in (*board.names, *others):
        cells = [board.scored_cell(s, name) for s in board.finished]
        if any(cells):
            shown = [
                mean_with_interval(scores(one, moment)) + marked(one, moment) if one else MISSING
                for one in cells
            ]
            body.append([f"`{name}`", *shown])
    return Table.of_cells(["Algorithm", *(SETTINGS[s][0] for s in board.finished)], body)


def marked(cell: Cell, moment: str) -> str:
    """Return the mark of a trained model that is *chosen*, or ""."""
    return " t" * (moment == "chosen" and chosen_moment(cell) == "trained")


def absent(board: Board) -> str:
    """Return why algorithms are not in the ranking, and what is not run at which cost."""
    lines = [f"- `{name}`: {row.out}." for name, row in rows().items() if row.out]
    errors = {name: f"{s}: {one.error}" for (s, name), one in board.cells.items()
              if one.error and s in board.settings}  # fmt: skip
    lines += [f"- `{name}`: {text}" for name, text in errors.items()]
    asked = dict.fromkeys(one.algorithm for one in board.tasks if one.setting in board.settings)
    later = [name for name in asked if name not in (*board.names, *errors)]
    old = list(filter(board.changed, board.names))
    groups = ("Not complete yet", later), ("Measured before their changes, marked *", old)
    lines += [f"- {what}: {listed(names)}." for what, names in groups if names]
    for setting, hours in board.hours().items():
        title, clients = SETTINGS[setting]
        what = f"The rest of {title}" if setting in board.finished else f"{title} ({clients})"
        time = "an unknown number of" if np.isnan(hours) else f"about {hours:.1f}"
        lines.append(f"- {what} takes {time} CPU hours.")
    return "\n".join(lines)


def write(folder: Path, board: Board) -> None:
    """Write the page and its pictures."""
    measured, names = timings(folder), board.names
    titles, marked = {key: title for key, (title, _) in SETTINGS.items()}, (*BASELINES, *PAPERS)
    shown = [one for k, one in enumerate(names) if k < FEW or one in marked or one == names[-1]]
    harms = {(one, m): harmed_by_seed(board, one, m) for one in names for m in MOMENTS}
    received = {s: scores(board.cells[s, "fedavg"], "received").mean() for s in board.finished}
    slowest = min(received, key=received.__getitem__)
    text = TEXT.format(
        normalized=findings.listed([name for name, row in rows().items() if row.normalized]),
        few=FEW, first=FIRST, count=len(names), settings=len(board.settings),
        chance=(len(names) - 1) / 40,
        slowest=f"as received, FedAvg is at {received[slowest]:.0f} % ({titles[slowest]})",
        harmed=f"{min(harms.values()):.0f} to {max(harms.values()):.0f}, of `local` as received "
               f"{harms['local', 'received']:.0f}",
        spent=sum(one.cpu_seconds for one in board.cells.values()) / 3600,
        in_short=findings.in_short(board, titles),
        settings_table=findings.by_setting(board, titles).to_markdown(), alone=findings.ALONE,
        near_local=findings.near_local(board), tests=findings.rank_tests(board, titles),
        redrawn=findings.redrawn(board, titles),
        trained=findings.listed(findings.mostly_trained(board, names[:FEW])) or "none",
        claims=findings.claims(board, titles), edges=edges(board).to_markdown(),
        without_effect=without_effect(board), without_score=without_score(board),
        notes="\n".join(f"- `{name}`: {row.note}." for name, row in rows().items() if row.note),
        remarks=remarks(board), other_moments=findings.other_moments(board),
        table_file="../../tools/leaderboard.toml", absent=absent(board),
        described="\n".join(f"| {' | '.join(SETTINGS[s])} |" for s in board.finished),
        machine=measured.machine,
        overall=overall(board, measured).to_markdown(),
        by_setting="\n\n".join(f"### {moment.capitalize()}\n\n"
                               f"{by_setting(board, moment).to_markdown()}"
                               for moment in findings.WAYS),
    )  # fmt: skip
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
