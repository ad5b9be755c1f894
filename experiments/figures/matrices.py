"""Selects and draws recorded matrices, by name, round, seed and client."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fedjax_pfl.utils.errors import InputError, unknown_name

from . import drawing
from .drawing import long_form, of_run
from .runs import Run


def seed_row(run: Run, seed: int | None) -> int:
    """Position of a seed of the run, the first by default.

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


def rounds_kept(run: Run, words: str) -> list[int]:
    """Positions of rounds in the run's matrices: numbers, "first", "last" or "" for all.

    Raises:
      InputError: a round that was not kept.
    """
    kept = run.matrix_rounds.tolist()
    ends = {"first": kept[0], "last": kept[-1]}
    chosen = []
    for word in words.split(",") if words else map(str, kept):
        word = word.strip()
        number = ends[word] if word in ends else int(word) if word.isdecimal() else None
        if number not in kept:
            raise InputError(
                f"{run.folder} kept the matrices of rounds {', '.join(map(str, kept))}, not of "
                f"{word!r}: run with --matrix_rounds={word}."
            )
        chosen.append(kept.index(number))
    return chosen


def block_rows(run: Run, count: int, words: str) -> list[int]:
    """Positions of groups of layers by name, "" for all.

    Raises:
      InputError: an unknown name.
    """
    names = run.blocks(count)
    chosen = [word.strip() for word in words.split(",")] if words else names
    for name in chosen:
        if name not in names:
            raise unknown_name("group of layers", name, names)
    return [names.index(name) for name in chosen]


def check_client(runs: Sequence[Run], client: int) -> None:
    """Raises `InputError` unless all runs have the client."""
    for run in runs:
        if not 0 <= client < run.num_clients:
            raise InputError(
                f"--client must be in 0..{run.num_clients - 1} ({run.folder}), got {client}."
            )


def chosen_neighbours(matrix: np.ndarray, top_k: int) -> np.ndarray:
    """bool [N, N]: the `top_k` largest weights of each row, those of 0 left out.

    Weights equal to the smallest chosen one are chosen too: a matrix of equal weights chooses all
    clients.
    """
    least = -np.sort(-matrix, axis=1)[:, min(top_k, matrix.shape[1]) - 1, None]
    return (matrix >= least * (1 - 1e-6)) & (matrix > 0)


def weight_numbers(
    run: Run, name: str, seed: int, number: int, weights: np.ndarray, block: str | None = None
) -> pd.DataFrame:
    """Weights [receiver, sender] of a seed and a round in long form."""
    facts = {**of_run(run, name), "seed": seed, "round": number}
    facts |= {} if block is None else {"block": block}
    clients = range(weights.shape[1])
    places = {"receiver": range(len(weights)), "sender": clients}
    return long_form({"weight": weights}, places, **facts)


def square_clients(axes, run: Run) -> None:
    """Square cells of a matrix, ticks of the clients, lines between groups."""
    axes.set_aspect("equal")
    drawing.client_ticks(axes.xaxis, run.num_clients, 8, run.client_names)
    drawing.client_ticks(axes.yaxis, run.num_clients, 8, run.client_names)
    for border in group_borders(run):
        axes.axhline(border, color="0.45", linewidth=0.6)
        axes.axvline(border, color="0.45", linewidth=0.6)


def group_borders(run: Run) -> np.ndarray:
    """Positions between clients of different groups, if the partition has groups side by side."""
    groups = run.config["partition"]["options"].get("client_groups")
    if groups is None or len(groups) != run.num_clients or groups != sorted(groups):
        return np.array([])
    return np.flatnonzero(np.diff(groups)) + 0.5


def within_groups(run: Run, chosen: np.ndarray) -> float | None:
    """Part of the chosen neighbours that are of the client's own group; None without groups."""
    groups = run.config["partition"]["options"].get("client_groups")
    if groups is None or len(groups) != run.num_clients or not chosen.any():
        return None
    groups = np.asarray(groups)
    return float(chosen[groups[:, None] == groups[None, :]].sum() / chosen.sum())
