"""Simulates algorithms on eight devices, for the tests of meshes; a process of its own.

    python -m tests.execution.on_a_mesh NAME,... PARTICIPATION MESH;... FOLDER

Writes a file for each algorithm and mesh, with all scores, records, matrices and models.
"""

import sys
from pathlib import Path

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_for


def numbers(name: str, mesh: str | None, **options) -> dict[str, np.ndarray]:
    """All numbers of two rounds of an algorithm in five runs; without a mesh on one device."""
    algorithm = pfl.make_algorithm(name)
    options |= {} if mesh is None else {"mesh": mesh}
    federation = toy_for(algorithm, (7, 3, 1, 10, 4), **options)
    rounds = pfl.simulate(algorithm, federation, 2, seeds=tuple(range(_parts(mesh))))
    models = jax.tree.leaves(rounds.final.models())
    arrays = {f"model {k}": np.asarray(leaf) for k, leaf in enumerate(models)}
    arrays |= rounds.scores | rounds.clients | rounds.matrices
    return {key: value[:5] for key, value in arrays.items()}


def _parts(mesh: str | None) -> int:
    return 8 if mesh == "runs:8" else 5


def main(names: str, part: str, meshes: str, folder: str) -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", 8)
    for name in names.split(","):
        for k, mesh in enumerate(meshes.split(";")):
            found = numbers(name, mesh, participation=float(part))
            np.savez(Path(folder) / f"{name}-{k}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
