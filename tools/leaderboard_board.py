"""What the leaderboard compares: complete settings, their rows, and the rows' ranks."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.harm import Gains
from fedjax_pfl.results.significance import FEWEST, Ranking
from fedjax_pfl.results.table import Table
from tools.leaderboard_cells import FIRST, MOMENTS, Cell, Cells, Scores, Task, missing, rows

NEARLY = "self-weight"  # is in the remark on it
BASES = ("local", "fedavg")  # that others are compared with
ENOUGH = 0.9  # of the first rows, for a setting to count


@dataclass(frozen=True)
class Board:
    """The cells of the leaderboard and what is compared.

    Attributes:
      cells: by setting and algorithm, of the present flags.
      tasks: of all cells that there should be.
    """

    cells: Cells
    tasks: Sequence[Task]

    @classmethod
    def of(cls, cells: Cells, tasks_: Sequence[Task]) -> "Board":
        """Return the board without cells of other flags.

        Raises:
          InputError: fewer settings than a test needs.
        """
        held = {(one.setting, one.algorithm): one.command for one in tasks_}
        board = cls({at: one for at, one in cells.items() if held.get(at) == one.command}, tasks_)
        if len(board.settings) < FEWEST:
            raise pfl.InputError(
                f"{len(board.settings)} settings have cells of {ENOUGH:.0%} of the first {FIRST} "
                f"rows, and a ranking needs {FEWEST}: run tools.leaderboard_queue."
            )
        return board

    @cached_property
    def finished(self) -> list[str]:
        """Settings with scores of the bases and cells of enough of the first rows."""
        first = list(rows())[:FIRST]
        asked = [one.setting for one in self.tasks if one.algorithm in first]
        there = [setting for setting, name in self.cells if name in first]
        return [
            s for s in dict.fromkeys(asked) if there.count(s) >= ENOUGH * asked.count(s)
            and all(self.scored_cell(s, name) for name in BASES)
        ]  # fmt: skip

    @cached_property
    def settings(self) -> list[str]:
        """Those of them in which all rows run."""
        asked = Counter(one.setting for one in self.tasks)
        return [s for s in self.finished if asked[s] == max(asked.values())]

    @cached_property
    def names(self) -> list[str]:
        """Algorithms with scores in all settings of all rows, the best mean rank first."""
        names = self.scored(self.settings)
        ranks = self.ranking("chosen", names, self.settings).mean_ranks
        return [names[i] for i in np.argsort(ranks, kind="stable")]

    def scored(self, settings: Sequence[str]) -> list[str]:
        """Return the algorithms with scores in all of these settings."""
        every = dict.fromkeys(one.algorithm for one in self.tasks)
        return [name for name in every if all(self.scored_cell(s, name) for s in settings)]

    def scored_cell(self, setting: str, name: str) -> Cell | None:
        """Return a cell, or None if it is missing or failed."""
        cell = self.cells.get((setting, name))
        return None if cell is None or cell.error else cell

    def ranking(self, moment: str, names: Sequence[str], settings: Sequence[str]) -> Ranking:
        """Return the ranking of algorithms by their means over clients and seeds."""
        means = [[scores(self.cells[s, name], moment).mean() for name in names]
                 for s in settings]  # fmt: skip
        return Ranking(names, settings, np.array(means))

    def self_weights(self, name: str) -> np.ndarray:
        """Return clients' mean weights on their own models in the settings, NaN if not recorded."""
        own = [of_moment(self.cells[s, name], "chosen").self_weight for s in self.settings]
        return np.array(own, float)

    def hours(self) -> dict[str, float]:
        """Return the CPU hours of the cells that are missing, by setting; NaN where none is known.

        A cell costs its algorithm's mean times the setting's, in those of all cells.
        """

        def mean(key: int, name: str) -> float:
            own = [one.cpu_seconds for at, one in self.cells.items() if at[key] == name]
            return float(np.mean(own or [np.nan]))

        usual = np.mean([one.cpu_seconds for one in self.cells.values()])
        found: dict[str, float] = {}
        for one in missing(self.tasks, self.cells):
            times = np.nan_to_num(mean(1, one.algorithm) / usual, nan=1.0)
            hours = float(times * mean(0, one.setting) / 3600)
            found[one.setting] = found.get(one.setting, 0.0) + hours
        return found

    def changed(self, name: str) -> bool:
        """Return whether a cell of the algorithm is of another revision than today's."""
        now = {one.algorithm: one.revision for one in self.tasks}
        return any(one.revision != now[name] for (_, n), one in self.cells.items() if n == name)


def chosen_moment(cell: Cell) -> str:
    """Return the moment with the best validation score."""
    return max(MOMENTS, key=lambda moment: np.nanmax([*cell.validation[moment], -1]))


def of_moment(cell: Cell, moment: str) -> Scores:
    """Return the scores of a moment, or of the "chosen" one."""
    return cell.scores[chosen_moment(cell) if moment == "chosen" else moment]


def scores(cell: Cell, moment: str) -> np.ndarray:
    """Return percent by seed [S], means over clients."""
    return 100 * np.nanmean(of_moment(cell, moment).by_client, axis=1)


def harmed(one: np.ndarray, other: np.ndarray, sizes: np.ndarray) -> float:
    """Return the percentage of pairs in which `one` is worse by more than a standard error.

    Args:
      one, other: accuracies [S, N]; sizes: test samples [N].
    """
    mine, its = np.rint(one * sizes), np.rint(other * sizes)
    mean = (mine + its) / (2 * sizes)
    errors = np.sqrt(mean * (1 - mean) / sizes)
    gains = Gains((mine - its) / sizes, errors, tuple(range(len(one))), np.arange(len(sizes)))
    return 100 * float(np.nanmean(gains.harmed))


def harmed_by_seed(board: Board, name: str, moment: str) -> float:
    """Return the mean percentage of pairs that another seed of the same row harms."""
    cells = [board.cells[s, name] for s in board.settings]
    own = [(of_moment(one, moment).by_client, np.array(one.test_sizes)) for one in cells]
    return float(np.mean([harmed(a, np.roll(a, 1, axis=0), sizes) for a, sizes in own]))


def edges(board: Board) -> Table:
    """Return a table of rows that choose the first or last value in most settings."""
    body = []
    for name in board.names:
        own, found = [board.cells[s, name] for s in board.settings], []
        for key in own[0].tried:
            numbers = [(float(of_moment(one, "chosen").chosen[key]),
                        [float(word) for word in one.tried[key]]) for one in own]  # fmt: skip
            for end, word in ((min, "smallest"), (max, "largest")):
                if sum(value == end(tried) for value, tried in numbers) > len(own) / 2:
                    found.append(f"{word} {key.rpartition('.')[2]}")
        if found:
            body.append([f"`{name}`", ", ".join(found)])
    return Table.of_cells(["Algorithm", "Chosen in most settings"], body)


def without_effect(board: Board) -> str:
    """Return a sentence on cells in which what is tuned beside the rate changes nothing."""
    found: Counter[str] = Counter()
    for name, setting in itertools.product(board.names, board.settings):
        cell = board.cells[setting, name]
        scored = (map(str, one) for one in cell.validation.values())  # NaN is not NaN
        outcomes = set(zip(cell.tried["learning_rate"], *scored, strict=True))
        found[name] += len(cell.tried) > 1 and len(outcomes) == len({one for one, *_ in outcomes})
    lines = [f"`{name}` ({count})" for name, count in found.items() if count]
    return (f"Rows whose own hyperparameter changes no validation score, with the number of "
            f"settings: {', '.join(lines) or 'none'}.")  # fmt: skip


def without_score(board: Board) -> str:
    """Return a sentence on clients without a score, as of models that are not finite."""
    found = []
    for (setting, name), cell in board.cells.items():
        for moment, one in cell.scores.items() if setting in board.finished else ():
            lost = np.isnan(one.by_client)
            if lost.any():
                found.append(f"`{name}` ({setting}, {moment}: {lost.sum()} of {lost.size})")
    return f"Without a score, and not in the means, are clients of {', '.join(found) or 'no row'}."


def remarks(board: Board) -> str:
    """Return a sentence on what results say of themselves, beside a weight near 1."""
    found: Counter[tuple[str, str]] = Counter()
    for name in board.names:
        own = [board.cells[s, name] for s in board.settings]
        said = itertools.chain(*(one.scores[chosen_moment(one)].remarks or [] for one in own))
        found.update((name, kind(text)) for text in said if NEARLY not in text)
    lines = [f"`{name}`: {text} ({k} of {len(board.settings)} settings)"
             for (name, text), k in found.items()]  # fmt: skip
    return f" Results' own remarks: {'; '.join(lines)}." * bool(lines)


def kind(remark: str) -> str:
    """Return a remark without the clients, rounds and numbers of seeds that it names."""
    text = re.sub(r" of (clients? |\d+ clients ).*? were not finite .*", " were not finite", remark)
    return re.split(r" in \d+ of | from round ", text)[0]
