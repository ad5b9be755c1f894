"""One of several processes that simulate algorithms on toy clients, for the tests of processes.

    python -m tests.engine.multi_process FOLDER PORT COUNT INDEX DEVICES NAME...

The first one writes a file for each algorithm, with all scores, records, matrices and models.
"""

import sys
from pathlib import Path

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.execution import processes
from fedjax_pfl.testing.toys import toy_for

ALGORITHMS = pfl.core.ALGORITHMS


def simulated(name: str, devices: int, **options) -> dict[str, np.ndarray]:
    """All numbers of two rounds of an algorithm, by name."""
    algorithm = pfl.make_algorithm(name)
    federation = toy_for(algorithm, mesh=f"clients:{devices}", **options)  # of five clients
    result = pfl.simulate(algorithm, federation, 2, seeds=(0, 1))
    models = jax.tree.leaves(result.final.models())
    arrays = {f"model {k}": np.asarray(leaf) for k, leaf in enumerate(models)}
    return arrays | result.scores | result.clients | result.matrices


def main(folder: Path, port: int, count: int, index: int, devices: int, names: list[str]) -> None:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(
        address,
        count,
        index,
        cluster_detection_method="deactivate",
        coordinator_bind_address=address,
    )
    for name in names:
        for part in (1.0, 0.6):
            arrays = simulated(name, count * devices, participation=part)
            if processes.is_first():
                np.savez(folder / f"{name}-{part}.npz", **arrays)
    jax.distributed.shutdown()


if __name__ == "__main__":
    place, *numbers = sys.argv[1:6]
    main(Path(place), *map(int, numbers), sys.argv[6:])
