"""Samples of a folder that PFLlib's `generate_*.py` wrote, as a data set."""

from pathlib import Path

import numpy as np

from fedjax_pfl.data.dataset import Dataset, dataset_from_arrays
from fedjax_pfl.data.pfllib_files import read_clients, read_config
from fedjax_pfl.data.sources.source_registry import register_dataset
from fedjax_pfl.utils.errors import require


@register_dataset(
    "pfllib",
    "a folder that PFLlib wrote, pfllib:PATH, with its samples and their clients",
    needs="the folder that PFLlib wrote",
)
def load_pfllib(folder: Path) -> Dataset:
    """All clients' training samples, then all their test samples, as PFLlib normalized them.

    Images and signals are stored channels first and are transposed. `read_partition(folder,
    dataset)` reads the clients' split from the same folder.
    """
    config = read_config(folder)
    parts = {}
    for split in ("train", "test"):
        samples, labels = [], []
        for what, x, y in read_clients(folder, split, config["num_clients"]):
            require(x.dtype.kind == "f", f"Type of the {what}", str(x.dtype), "floats, no texts")
            same = not samples or x.shape[1:] == samples[0].shape[1:]
            require(same, f"Shape of the {what}", x.shape[1:], "that of the first client's")
            samples.append(x)
            labels.append(y)
        x = np.concatenate(samples)
        parts[split] = np.moveaxis(x, 1, -1) if x.ndim == 4 else x, np.concatenate(labels)
    return dataset_from_arrays(
        folder.resolve().name, *parts["train"], *parts["test"],
        num_classes=config.get("num_classes"), note="normalized by PFLlib",
    )  # fmt: skip
