"""The table of clients that have names: OUTPUT/clients.csv, a row for each."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.names import HEADLINE
from fedjax_pfl.results.table import Column, Table

from .run_files import write_text

FILE = "clients.csv"
SPLITS = ("train", "test", "validation")


def write(folder: Path, partition: pfl.Partition, results: Mapping[str, pfl.Result]) -> None:
    """Writes each client's number, name, samples, and its models' last test scores.

    A score is the mean over seeds of the personalized model's; it is empty for a client that was
    not scored, such as a new one. Nothing is written where clients have no names.
    """
    if not partition.names:
        return
    scores = {
        f"{name}/{score.rpartition('/')[2]}": _last(result, values)
        for name, result in results.items()
        for score, values in result.scores.items()
        if score.startswith(f"{HEADLINE}/test/")
    }
    sizes = {split: partition.sizes(split).tolist() for split in SPLITS}
    rows = [
        {"client": client, "name": name}
        | {split: counts[client] for split, counts in sizes.items()}
        | {score: means.get(client) for score, means in scores.items()}
        for client, name in enumerate(partition.names)
    ]
    write_text(folder / FILE, Table([Column(key, key) for key in rows[0]], rows).to_csv())


def _last(result: pfl.Result, values: np.ndarray) -> dict[int, float]:
    """Means over seeds of scores [S, H, E, N] of the last round that was scored, by client."""
    if not len(result.eval_rounds):
        return {}
    means = values[:, 0, -1].astype(np.float64).mean(axis=0)
    known = ~np.isnan(means)
    return dict(zip(result.client_ids[known].tolist(), means[known].tolist(), strict=True))
