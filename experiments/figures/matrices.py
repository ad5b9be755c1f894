"""Recorded matrices by name, round, seed and client, and how they are drawn."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedjax_pfl.results import plots
from fedjax_pfl.utils.errors import InputError, require_name

from .drawing import Drawing, of_run
from .runs import Run
from .selection import labels, with_matrix

Recorded = tuple[Run, str, int, int, np.ndarray]


def recorded(runs: Sequence[Run], matrix: str, rounds: str, seed: int | None) -> Iterator[Recorded]:
    """Yield (run, its label, seed, round, weights [G, N, N]) of each run and chosen round.

    Args:
      matrix: its name; runs without it are left out.
      rounds: of `rounds_at`.
      seed: the first by default.
    """
    runs = with_matrix(runs, matrix)
    for run, name in zip(runs, labels(runs), strict=True):
        s = seed_row(run, seed)
        for q in rounds_at(run, rounds):
            weights = run.matrix(matrix)[s, q].astype(float)
            yield run, name, run.seeds[s], int(run.matrix_rounds[q]), weights


def seed_row(run: Run, seed: int | None) -> int:
    """Return the position of a seed of the run, the first by default.

    Raises:
      InputError: the run doesn't have it.
    """
    if seed is None:
        return 0
    if seed not in run.seeds:
        raise InputError(
            f"--seed must be one of {', '.join(map(str, run.seeds))} ({run.folder}), got {seed}."
        )
    return run.seeds.index(seed)


def rounds_at(run: Run, words: str) -> list[int]:
    """Return the positions of rounds in the run's matrices: numbers, "first", "last" or "" for all.

    Raises:
      InputError: a round that was not recorded.
    """
    rounds = run.matrix_rounds.tolist()
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


def check_client(runs: Sequence[Run], client: int) -> None:
    """Raise `InputError` unless all runs have the client."""
    for run in runs:
        if not 0 <= client < run.num_clients:
            raise InputError(
                f"--client must be in 0..{run.num_clients - 1} ({run.folder}), got {client}."
            )


def chosen_neighbours(matrix: np.ndarray, top_k: int) -> np.ndarray:
    """Return the `top_k` largest weights of each row, without weights of 0, bool [N, N].

    Weights equal to the smallest chosen one are chosen too: a matrix of equal weights chooses all
    clients.
    """
    least = -np.sort(-matrix, axis=1)[:, min(top_k, matrix.shape[1]) - 1, None]
    return (matrix >= least * (1 - 1e-6)) & (matrix > 0)


def add_weights(drawing: Drawing, run: Run, name: str, weights: np.ndarray, **facts: Any) -> None:
    """Add weights [receiver, sender] to the numbers."""
    receivers, senders = map(range, weights.shape)
    places = {"receiver": receivers, "sender": senders}
    drawing.add({"weight": weights}, places, **of_run(run, name), **facts)


def square_clients(axes: Axes, run: Run) -> None:
    """Draw square cells of a matrix, ticks of the clients, and lines between groups."""
    axes.set_aspect("equal")
    plots.client_ticks(axes.xaxis, run.num_clients, 8, run.client_names)
    plots.client_ticks(axes.yaxis, run.num_clients, 8, run.client_names)
    for border in group_borders(run):
        axes.axhline(border, color="0.45", linewidth=0.6)
        axes.axvline(border, color="0.45", linewidth=0.6)


def client_groups(run: Run) -> list[int] | None:
    """Return the group of each client, if the partition has groups."""
    groups = run.config["partition"]["options"].get("client_groups")
    return None if groups is None or len(groups) != run.num_clients else groups


def group_borders(run: Run) -> np.ndarray:
    """Return the positions between consecutive groups of clients, if the partition has groups."""
    groups = client_groups(run)
    if groups is None or groups != sorted(groups):
        return np.array([])
    return np.flatnonzero(np.diff(groups)) + 0.5


def within_groups(run: Run, chosen: np.ndarray) -> float | None:
    """Return the fraction of neighbours in the client's own group; None without groups."""
    groups = client_groups(run)
    if groups is None or not chosen.any():
        return None
    return float(chosen[np.equal.outer(groups, groups)].sum() / chosen.sum())
