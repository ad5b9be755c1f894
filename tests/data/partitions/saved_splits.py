"""Splits as PFLlib, FL-bench and flwr-datasets save them."""

import json
import pickle
import runpy

import numpy as np

from fedjax_pfl.data.dataset import dataset_from_arrays

SHAPE = (6, 5, 3)


def images(count, seed, shape=SHAPE):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def colour_set(duplicates=False):
    x = images(50, 0)
    y = np.arange(50) % 4
    if duplicates:
        x[7], y[7] = x[3], y[3]  # one sample twice
        x[9] = x[2]  # one image under two labels
    return dataset_from_arrays("colours", x[:40], y[:40], x[40:], y[40:], num_classes=4)


DATA = colour_set()


TRAIN = [[0, 3, 7, 44], [9, 1], [20, 45]]


TEST = [[41, 2], [5], []]


EXPECTED = [[sorted(idx) for idx in TRAIN], [sorted(idx) for idx in TEST]]


def write_pfllib(folder, dataset, suffix=".npz", mean=0.5, std=0.5, noted=True):
    x, y = dataset.pool()
    for split, lists in (("train", TRAIN), ("test", TEST)):
        (folder / split).mkdir(parents=True)
        for client, idx in enumerate(lists):
            shuffled = np.random.default_rng(client).permutation(idx).astype(int)
            samples = x[shuffled]
            if x.dtype == np.uint8:
                samples = (np.moveaxis(samples, -1, 1) / 255 - mean) / std
            arrays = {"x": samples.astype(np.float32), "y": y[shuffled].astype(np.int64)}
            path = folder / split / f"{client}{suffix}"
            if suffix == ".npz":
                np.savez_compressed(path, data=arrays)  # pickles, as PFLlib does
            else:
                np.savez_compressed(path, **arrays)
    statistic = [
        [(int(c), int(np.sum(y[a + b] == c))) for c in np.unique(y[a + b])]
        for a, b in zip(TRAIN, TEST, strict=True)
    ]
    config = {"num_clients": 3, "num_classes": 4}
    if noted:
        config["Size of samples for labels in clients"] = statistic
    (folder / "config.json").write_text(json.dumps(config))


def lists_of(partition):
    return [[sorted(one.tolist()) for one in partition.split(s).lists()] for s in ("train", "test")]


CLIENTS = [
    {"train": [0, 3, 7], "val": [44], "test": [41, 2]},
    {"train": [9, 1], "val": [], "test": [5]},
    {"train": [20, 45], "val": [], "test": []},
]


def write_flbench(folder, clients=CLIENTS):
    folder.mkdir(parents=True)
    indices = [{name: np.array(part, np.int64) for name, part in one.items()} for one in clients]
    (folder / "partition.pkl").write_bytes(pickle.dumps({"data_indices": indices}))


def exported(folder, script):
    (folder / "export.py").write_text(script.format(folder=str(folder)))
    runpy.run_path(str(folder / "export.py"))
