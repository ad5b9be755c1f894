"""Driver of `tools.compare_revisions`: runs every algorithm on a small federation.

It runs once for each revision, and writes the measurements and the last states and models.

`python compare_driver.py OUT ALGORITHMS DEVICES`: `ALGORITHMS` are names with commas between them,
or `all`; with two devices only the cases that use them run.
"""

import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.core.algorithm_registry import ALGORITHMS  # where earlier revisions have it too

ROUNDS, SEEDS = 3, (0, 1)
# Beside the runs of all algorithms: name, algorithm, options of the federation, of `simulate`.
CASES = (
    ("host state", "ditto", {"client_state": "host"}, {}),
    ("vmap", "feddwa", {"client_execution": "vmap"}, {}),
    ("sweep", "fedavg", {}, {"settings": {"learning_rate": (0.1, 0.03)}}),
    ("stragglers", "plga", {"stragglers": {1: 1, 3: 2}, "participation": 1.0}, {}),
)
ON_TWO_DEVICES = (
    ("two devices", "feddwa", {"devices": 2}, {}),
    ("two devices, map", "cwfedavg", {"devices": 2, "client_execution": "map"}, {}),
)
NEEDS_BATCH_NORM = ("fedbn",)


def federation(model: str, **options) -> pfl.Federation:
    """Return six ragged clients, 60 % of them per round; one has very few samples."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 12, 12, 1) if model != "mlp" else (240, 6)).astype(np.float32)
    y = np.arange(240) % 4
    x += y.reshape(-1, *[1] * (x.ndim - 1))  # something to learn
    dataset = pfl.dataset_from_arrays("noise", x, y)
    partition = pfl.make_partition("dirichlet", dataset, num_clients=6, seed=3, alpha=0.3)
    partition = partition.split_validation(0.25, seed=0)
    options = {"participation": 0.6, "learning_rate": 0.1, "batch_size": 5, **options}
    options |= {"model_options": {"hidden": 8}} if model == "mlp" else {}
    return pfl.federate(dataset, partition, model, **options)


def write(path: Path, name: str, options: dict, simulated: dict) -> None:
    """Simulate an algorithm and write its measurements, last states and last models."""
    made = federation("mtfl_cnn" if name in NEEDS_BATCH_NORM else "mlp", **options)
    algorithm = pfl.make_algorithm(name)
    result = pfl.simulate(algorithm, made, ROUNDS, seeds=SEEDS, **simulated)
    states: Any = result.final.states
    if hasattr(states, "to_host"):
        states = states.to_host()
    elif hasattr(states, "whole"):  # its name until 0.4
        states = states.whole()
    parts = {
        "metrics": [result.scores, result.clients, result.scalars, result.matrices],
        "states": states,
        "models": result.final.models(),
    }
    arrays = {}
    for part, tree in parts.items():
        for i, leaf in enumerate(jax.tree.leaves(tree)):
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            arrays[f"{part}/{i}"] = np.asarray(leaf)
    np.savez(path, **arrays)


def main(out: Path, names: str, devices: int) -> None:
    warnings.simplefilter("ignore")
    wanted = sorted(ALGORITHMS) if names == "all" else names.split(",")
    cases = [(name, name, {}, {}) for name in wanted] if devices == 1 else []
    cases += [case for case in (CASES if devices == 1 else ON_TWO_DEVICES) if case[1] in wanted]
    for case, name, options, simulated in cases:
        try:
            write(out / f"{case}.npz", name, options, simulated)
        except Exception as error:  # the other revision may fail alike: the comparison tells
            (out / f"{case}.error").write_text(f"{type(error).__name__}: {error}")
        jax.clear_caches()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
