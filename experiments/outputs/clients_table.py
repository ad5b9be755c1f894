"""The table of clients that have names: OUTPUT/clients.csv, a row for each."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.results.model_names import PERSONALIZED

from .run_files import write_text

FILE = "clients.csv"
SPLITS = ("train", "test", "validation")


def write(folder: Path, partition: pfl.Partition, results: Mapping[str, pfl.Result]) -> None:
    """Write each client's number, name, samples, and its models' last test scores.

    A score is the mean over seeds of the personalized model's; it is empty for a client that was
    not scored, such as a new one. Nothing is written where clients have no names.
    """
    if not partition.names:
        return
    import pandas as pd  # slow import

    table = pd.DataFrame({"name": partition.names} | {s: partition.sizes(s) for s in SPLITS})
    for name, result in results.items():
        for score, values in result.scores.items():
            if score.startswith(f"{PERSONALIZED}/test/"):
                means = values[:, 0].astype(float).mean(axis=0)  # [E, N]
                last = pd.Series(means[-1], result.client_ids) if len(means) else np.nan
                table[f"{name}/{score.rpartition('/')[2]}"] = last
    write_text(folder / FILE, table.to_csv(index_label="client", lineterminator="\r\n"))
