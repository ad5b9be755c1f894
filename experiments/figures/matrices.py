"""Recorded matrices of runs by round and group of layers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from fedjax_pfl.utils.errors import InputError, require_name
from fedjax_pfl.utils.plotting import client_ticks, heat

from .drawing import SMALL, Drawing, figure, of_run
from .runs import Run
from .selection import labels, with_matrix

Recorded = tuple[Run, str, int, int, np.ndarray]


@figure("matrices/rounds", "a recorded matrix of each run by round, and by layer if it has layers")
def by_round(
    runs: Sequence[Run],
    *,
    matrix: str = "mixing",
    block: str = "",
    rounds: str = "",
    seed: int | None = None,
) -> Drawing:
    """Heat maps receiver x sender, a row for each run and round, a column for each group of layers.

    One colour scale, that of square roots, so that the others' weights are visible beside a
    client's own. Where the partition has groups of clients, lines separate them.

    Args:
      matrix: name of a recorded matrix.
      block: names of layers; all by default.
      rounds: some of the recorded ones, "first" or "last"; all by default.
      seed: the first by default.
    """
    rows = list(recorded(runs, matrix, rounds, seed))
    chosen = [block_rows(run, len(weights), block) for run, *_, weights in rows]
    counts = [len(layers) for layers in chosen]
    drawing = Drawing(2.5 * max(counts) + 1.3, 2.7 * len(rows) + 0.3, counts)
    shown = (weights[layers] for (*_, weights), layers in zip(rows, chosen, strict=True))
    norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(np.nanmax(one)) for one in shown) or 1.0)
    for row, one, layers in zip(drawing.rows, rows, chosen, strict=True):
        run, name, seed_shown, number, weights = one
        for axes, g in zip(row, layers, strict=True):
            image = heat(axes, weights[g], norm)
            square_clients(axes, run)
            layer = run.blocks(len(weights))[g] if len(weights) > 1 else ""
            axes.set_title(layer, **SMALL)
            axes.set_xlabel("sender")
            facts: dict[str, Any] = {"seed": seed_shown, "round": number, "block": layer}
            places = {"receiver": range(run.num_clients), "sender": range(run.num_clients)}
            drawing.add({"weight": weights[g]}, places, **of_run(run, name), **facts)
        row[0].set_ylabel(f"{name}, round {number}\nreceiver")
    drawing.colorbar(image, drawing.axes, "weight (white: 0)")
    return drawing


def recorded(runs: Sequence[Run], matrix: str, rounds: str, seed: int | None) -> Iterator[Recorded]:
    """Yield (run, its label, seed, round, weights [G, N, N]) of each run and chosen round.

    Args:
      matrix: its name; runs without it are left out.
      rounds: of `rounds_at`.
      seed: the first by default.

    Raises:
      InputError: a run does not have the seed.
    """
    runs = with_matrix(runs, matrix)
    for run, name in zip(runs, labels(runs), strict=True):
        if seed is not None and seed not in run.seeds:
            known = ", ".join(map(str, run.seeds))
            raise InputError(f"--seed must be one of {known} ({run.folder}), got {seed}.")
        s = 0 if seed is None else run.seeds.index(seed)
        for q in rounds_at(run, rounds):
            weights = run.matrix(matrix)[s, q].astype(float)
            yield run, name, run.seeds[s], int(run.result.matrix_rounds[q]), weights


def rounds_at(run: Run, words: str) -> list[int]:
    """Return the positions of rounds in the run's matrices: numbers, "first", "last" or "" for all.

    Raises:
      InputError: a round that was not recorded.
    """
    rounds = run.result.matrix_rounds.tolist()
    ends = {"first": rounds[0], "last": rounds[-1]}
    chosen = []
    for word in words.split(",") if words else map(str, rounds):
        word = word.strip()
        number = ends[word] if word in ends else int(word) if word.isdecimal() else None
        if number not in rounds:
            raise InputError(
                f"{run.folder} kept the matrices of rounds {', '.join(map(str, rounds))}, not of "
                f"{word!r}: run with --matrix_rounds={word}."
            )
        chosen.append(rounds.index(number))
    return chosen


def block_rows(run: Run, count: int, words: str) -> list[int]:
    """Return the positions of groups of layers by name, "" for all.

    Raises:
      InputError: an unknown name.
    """
    names = run.blocks(count)
    chosen = [word.strip() for word in words.split(",")] if words else names
    for name in chosen:
        require_name("group of layers", name, names)
    return [names.index(name) for name in chosen]


def square_clients(axes: Axes, run: Run) -> None:
    """Draw square cells of a matrix, ticks of the clients, and lines between groups."""
    axes.set_aspect("equal")
    client_ticks(axes.xaxis, run.num_clients, 8, run.result.client_names)
    client_ticks(axes.yaxis, run.num_clients, 8, run.result.client_names)
    for border in group_borders(run):
        axes.axhline(border, color="0.45", linewidth=0.6)
        axes.axvline(border, color="0.45", linewidth=0.6)


def group_borders(run: Run) -> np.ndarray:
    """Return the positions between consecutive groups of clients, if the partition has groups."""
    groups = run.config["partition"]["options"].get("client_groups")
    if groups is None or len(groups) != run.num_clients or groups != sorted(groups):
        return np.array([])
    return np.flatnonzero(np.diff(groups)) + 0.5
