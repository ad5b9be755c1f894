"""What the leaderboard's cells say: a table of settings, and sentences."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.reproduction import paper_tables
from fedjax_pfl.results.intervals import interval
from fedjax_pfl.results.notes import LOCAL
from fedjax_pfl.results.table import Table
from tools.leaderboard_board import Board, chosen_moment, of_moment, scores
from tools.leaderboard_cells import MOMENTS, NORMALIZED, REDRAWN, rows

# The table of each paper's method, and what is in the names of its columns of skewed labels.
PAPERS = {"feddwa": ("feddwa/1", ""), "waffle": ("waffle/1", ""), "cwfedavg": ("cwfedavg/1", ""),
          "spfl": ("spfl/1", "noniid"), "plga": ("plga/2", "client"), "pfedla": ("pfedla/1", ""),
          "heurpfedla": ("pfedla/1", "")}  # fmt: skip
NOTES = {
    "feddwa": "The authors' code scores models as received.",
    "waffle": "Its paper scores the server's model, as received.",
    "cwfedavg": "The authors' code scores models as received. Its FedAMP is local training.",
    "spfl": "The authors' code prints both moments.",
    "plga": "Its paper is about late clients, and none is late here.",
    "pfedla": "Its paper does not state the moment.",
    "heurpfedla": "Its paper does not state the moment.",
}
WAYS = ("chosen", *MOMENTS)
ALONE = "†"


def difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the mean difference of two rows [S] and half of its 95 % interval, paired by seed."""
    half = interval(one - other)
    return float((one - other).mean()), np.inf if half is None else half


def clearly_above(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether the interval of the difference excludes 0 and what is below."""
    mean, half = difference(one, other)
    return mean > half


def by_setting(board: Board, titles: Mapping[str, str]) -> Table:
    """Return a table of the settings: FedAvg, `local`, the first row, and how many are near it."""
    body = []
    for setting in board.finished:
        cells = {name: one for name in rows() if (one := board.scored_cell(setting, name))}
        own = {name: scores(one, "chosen") for name, one in cells.items()}
        first = max(own, key=lambda name: own[name].mean())
        shown = f"`{first}` ({chosen_moment(cells[first])})"
        fedavg = (f"{scores(cells['fedavg'], moment).mean():.1f}" for moment in MOMENTS)
        mean, half = difference(own[first], own["local"])
        level = sum(not clearly_above(own[first], one) for one in own.values())
        above = sum(clearly_above(one, own["local"]) for one in own.values())
        body.append([titles[setting], *fedavg, f"{own['local'].mean():.1f}", shown,
                     f"{own[first].mean():.1f}", f"{mean:+.1f} ± {half:.1f}",
                     f"{above}", f"{level} of {len(own)}"])  # fmt: skip
    return Table.of_cells(
        ["Setting", "FedAvg, received", "FedAvg, trained", "`local`", "First", "Its accuracy",
         "Above `local`", "Rows clearly above `local`",
         "Not clearly below the first (itself included)"],
        body,
    )  # fmt: skip


def in_short(board: Board, titles: Mapping[str, str]) -> str:
    """Return the first rows by mean rank, and the settings in which few are above `local`."""
    ranks = {moment: board.ranking(moment, board.names, board.settings) for moment in WAYS}
    first = {moment: board.names[one.mean_ranks.argmin()] for moment, one in ranks.items()}
    means, reach, found = ranks["chosen"].mean_ranks, ranks["chosen"].critical_difference(), []
    times = sum(chosen_moment(board.cells[s, first["chosen"]]) == "trained" for s in board.settings)
    for s in board.settings:
        local = scores(board.cells[s, "local"], "chosen")
        above = [clearly_above(scores(board.cells[s, one], "chosen"), local) for one in board.names]
        found += [titles[s]] * (10 * sum(above) < len(above))
    return (
        f"First by mean rank is `{first['chosen']}`, *chosen* as trained in {times} of "
        f"{len(board.settings)} settings; {(means > means.min() + reach).sum()} of the "
        f"{len(board.names) - 1} other rows can be told apart from it. As received the first is "
        f"`{first['received']}`, as trained `{first['trained']}`. Less than a tenth of the rows "
        f"are clearly above `local` in {', '.join(found) or 'no setting'}."
    )


def rank_tests(board: Board, titles: Mapping[str, str]) -> str:
    """Return what tests say of the ranks, a paragraph for each moment and group of settings."""
    found = []
    more = [s for s in board.finished if not s.startswith((REDRAWN, NORMALIZED))]
    groups = [board.settings, *[more] * (len(more) > len(board.settings))]
    for settings, moment in itertools.product(groups, WAYS):
        names = board.scored(settings)
        ranking = board.ranking(moment, names, settings)
        means, reach = ranking.mean_ranks, ranking.critical_difference()
        order = np.argsort(means, kind="stable")
        worse = [names[k] for k in order if means[k] > means.min() + reach]
        changes = []
        for k, setting in enumerate(settings):
            others = np.delete(ranking.ranks, k, axis=0).mean(axis=0)
            if others[order[0]] > others.min():
                changes.append(f"`{names[others.argmin()]}` without {titles[setting]}")
        found.append(
            f"**{moment.capitalize()}, {len(names)} rows in {len(settings)} settings.** Friedman's "
            f"test: p = {ranking.friedman().p_value:.1g}. By Nemenyi's critical difference at 5 %, "
            f"{reach:.1f} ranks, {listed(worse) or 'no row'} can be told apart from the first, "
            f"`{names[order[0]]}`. Leaving out one setting "
            f"{f'changes the first{bracketed(changes)}' if changes else 'keeps the first'}."
        )
    return "\n\n".join(found)


def redrawn(board: Board, titles: Mapping[str, str]) -> str:
    """Return whether the order of rows holds with another draw of a partition, as *chosen*."""
    found = []
    for again in [s for s in board.finished if s.startswith(REDRAWN)]:
        once = again.removeprefix(REDRAWN)
        names = board.scored([once, again])
        own = {
            at: scores(board.cells[at], "chosen") for at in itertools.product((once, again), names)
        }
        pairs = [(one, other) for one, other in itertools.permutations(names, 2)
                 if own[once, one].mean() > own[once, other].mean()]  # fmt: skip
        clear = [(one, other) for one, other in pairs
                 if clearly_above(own[once, one], own[once, other])]  # fmt: skip
        kept = [own[again, one].mean() > own[again, other].mean() for one, other in pairs]
        same = sum(clearly_above(own[again, one], own[again, other]) for one, other in clear)
        turned = sum(clearly_above(own[again, other], own[again, one]) for one, other in clear)
        found.append(
            f"With another draw of {titles[once]}'s partition, {100 * np.mean(kept):.0f} % of the "
            f"pairs of {len(names)} rows keep their order; of {len(clear)} that were clearly "
            f"ordered, {same} are so again and {turned} clearly the other way."
        )
    return " ".join(found) or "Not measured."


def near_local(board: Board) -> str:
    """Return a sentence on rows whose clients hardly mix; "" if there is none."""
    found, above, below = Counter(), 0, 0
    for setting, name in itertools.product(board.settings, board.names):
        cell, local = board.cells[setting, name], board.cells[setting, "local"]
        alone = [m for m in MOMENTS if trains_alone(board, setting, name, m)]
        found[name] += bool(alone)
        above += any(clearly_above(scores(cell, m), scores(local, m)) for m in alone)
        below += any(clearly_above(scores(local, m), scores(cell, m)) for m in alone)
    near = [f"`{name}` ({count})" for name, count in found.items() if count]
    return (
        f"As received or trained, clients of {', '.join(near)} end with a mean self-weight above "
        f"{100 * LOCAL:.0f} % in so many of the {len(board.settings)} settings: nearly local "
        f"training. {above} of these {found.total()} are clearly above `local` and {below} "
        "clearly below."
    ) * bool(near)


def mostly_trained(board: Board, names: Sequence[str]) -> list[str]:
    """Return the algorithms whose chosen moment is "trained" in most settings."""

    def count(name: str) -> int:
        return sum(chosen_moment(board.cells[s, name]) == "trained" for s in board.settings)

    return [name for name in names if 2 * count(name) > len(board.settings)]


def trains_alone(board: Board, setting: str, name: str, moment: str) -> bool:
    """Return whether an algorithm's clients there give nearly all weight to their own models."""
    return (of_moment(board.cells[setting, name], moment).self_weight or 0.0) > LOCAL


def rivals(name: str) -> list[str]:
    """Return the algorithms that the paper's table has below its method in more of the columns of
    skewed labels than above, without the paper's own."""
    table, part = paper_tables.load(PAPERS[name][0]), PAPERS[name][1]
    (own,) = [one for one in table.row if one.algorithm == name and not one.settings + one.flags]
    columns = [k for k, one in enumerate(table.column) if part in one.name]
    found = [
        one.algorithm for one in table.row if one.algorithm not in PAPERS and not one.beside
        and sum(np.sign(own.paper[k] - one.paper[k]) for k in columns
                if not np.isnan(own.paper[k] - one.paper[k])) > 0
    ]  # fmt: skip
    return list(dict.fromkeys(found))


def claims(board: Board, titles: Mapping[str, str]) -> str:
    """Return how each paper's method stands to its rivals, a paragraph each."""
    found = []
    for name in PAPERS:
        settings, every = [s for s in board.settings if board.scored_cell(s, name)], rivals(name)
        run = [one for one in every if settings
               and all(board.scored_cell(s, one) for s in settings)]  # fmt: skip
        absent = [one for one in every if one not in run]
        those = [listed(run)] * bool(run) + [f"not {listed(absent)}"] * bool(absent)
        text = (f"- [`{name}`](../algorithms/{name}.md), {len(run)} of {len(every)} rivals run "
                f"({'; '.join(those)}).")  # fmt: skip
        for moment in WAYS if run else ():
            own = {s: scores(board.cells[s, name], moment) for s in settings}
            theirs = {s: {one: scores(board.cells[s, one], moment) for one in run}
                      for s in settings}  # fmt: skip
            won = [s for s in settings if own[s].mean() > max(r.mean() for r in theirs[s].values())]
            clear = [s for s in won if all(clearly_above(own[s], r) for r in theirs[s].values())]
            ahead = {s: [one for one, r in theirs[s].items() if clearly_above(r, own[s])]
                     for s in settings}  # fmt: skip
            times = Counter(itertools.chain(*ahead.values()))
            most = [f"{listed([one for one in times if times[one] == k])} in {k}"
                    for k in sorted({*times.values()}, reverse=True)]  # fmt: skip
            where = [titles[s] + ALONE * trains_alone(board, s, name, moment) for s in won]
            text += (
                f" *{moment.capitalize()}*: above all of them in {len(won)} of {len(settings)} "
                f"settings{bracketed(where)}, clearly in {len(clear)}; clearly below one in "
                f"{sum(map(bool, ahead.values()))}"
                f"{bracketed(most)}."
            )
        for setting in [s for s in board.finished if s not in board.settings]:
            text += _of_further(board, titles, setting, name, every)
        found.append(f"{text} {NOTES.get(name, '')}".strip())
    return "\n".join(found)


def _of_further(
    board: Board, titles: Mapping[str, str], setting: str, name: str, others: Sequence[str]
) -> str:
    """Return a sentence on a setting of the first rows, which may lack some of the rivals."""
    own = board.scored_cell(setting, name)
    theirs = [one for other in others if (one := board.scored_cell(setting, other))]
    if own is None or not theirs:
        return ""
    ways = [
        f"{sum(scores(own, m).mean() > scores(one, m).mean() for one in theirs)} as {m}"
        for m in WAYS
    ]
    return f" {titles[setting]}: of {len(theirs)} rivals it is above {', '.join(ways)}."


def other_moments(board: Board) -> str:
    """Return in how many cells the moment that is not chosen has the higher test scores."""
    cells = [board.cells[at] for at in itertools.product(board.settings, board.names)]
    pairs = [(scores(one, m), scores(one, "chosen")) for one in cells for m in MOMENTS]
    higher = sum(other.mean() > own.mean() for other, own in pairs) / len(cells)
    clear = sum(clearly_above(other, own) for other, own in pairs) / len(cells)
    return (f"{100 * higher:.0f} % of cells the other moment has higher test scores, clearly in "
            f"{100 * clear:.0f} %")  # fmt: skip


def listed(names: Sequence[str]) -> str:
    """Return names as inline code."""
    return ", ".join(f"`{name}`" for name in names)


def bracketed(words: Sequence[str]) -> str:
    """Return words in brackets after a blank, or nothing without any."""
    return f" ({'; '.join(words)})" if words else ""
