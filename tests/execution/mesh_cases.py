"""Simulates algorithms on eight devices, for the tests of meshes; a process of its own.

    python -m tests.execution.mesh_cases NAME,... CLIENTS RUNS PARTICIPATION MESH;... FOLDER

Writes a file for each algorithm and mesh, with all scores, records, matrices and models.
"""

import sys
from pathlib import Path

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_for

SIZES = (7, 3, 1, 10, 4, 2, 5, 8, 1, 6, 3, 9, 2)


def numbers(
    name: str, mesh: str | None, clients: int, runs: int, **options
) -> dict[str, np.ndarray]:
    """All numbers of two rounds of an algorithm; without a mesh on one device."""
    algorithm = pfl.make_algorithm(name)
    options |= {} if mesh is None else {"mesh": mesh}
    federation = toy_for(algorithm, SIZES[:clients], **options)
    seeds = tuple(range(8 if mesh == "runs:8" else runs))
    rounds = pfl.simulate(algorithm, federation, 2, seeds=seeds)
    models = jax.tree.leaves(rounds.final.models())
    arrays = {f"model {k}": np.asarray(leaf) for k, leaf in enumerate(models)}
    arrays |= rounds.scores | rounds.clients | rounds.matrices
    return {key: value[:runs] for key, value in arrays.items()}


def main(names: str, clients: str, runs: str, part: str, meshes: str, folder: str) -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 8)
    for name in names.split(","):
        for k, mesh in enumerate(meshes.split(";")):
            found = numbers(name, mesh, int(clients), int(runs), participation=float(part))
            np.savez(Path(folder) / f"{name}-{k}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
