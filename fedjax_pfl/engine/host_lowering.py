"""The programs of `offloaded_state` for devices that need not be there, and what the host has to
hold."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jax.sharding import SingleDeviceSharding

from fedjax_pfl.engine import host_programs as programs
from fedjax_pfl.engine.host_needs import TracedProgram
from fedjax_pfl.engine.lowered import HostCosts, Lowered
from fedjax_pfl.engine.memory import nbytes
from fedjax_pfl.engine.program import at
from fedjax_pfl.execution.mesh import AXIS, RUNS, described_devices, place
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Device


def lowered(program: TracedProgram, devices: Sequence[Device]) -> Lowered:
    """See `Program.lowered`.

    Raises:
      InputError: rounds read rows of others while they run, which no plan counts.
    """
    if len(devices) != program.federation.execution.all_devices:
        raise ValueError("The program is for another number of devices.")
    home = SingleDeviceSharding(devices[0]) if len(devices) == 1 else None
    platform, layout = program.federation.execution.platform, program.layout
    with described_devices(devices):
        if program.reads:
            raise InputError(
                "A plan does not count the models of other clients that rounds read from host "
                "memory: take client_state='device'."
            )
        mesh = programs.mesh(program.federation)

        def there(splits: tuple[str, ...], clients: int) -> tuple:
            """(the federation with samples of so many clients, these)."""
            data = program.data.of(np.zeros(1, np.int64), splits, clients)
            samples = data.samples, data.labels, [data.split(name).index for name in splits]
            return replace(program.federation, data=data), samples

        def placed(operands: tuple) -> tuple:
            kept, rows, *others = at(home, operands)
            return place(kept, mesh, RUNS), place(rows, mesh, RUNS, AXIS), *others

        federation, samples = there(program.round_splits, program.members)
        operands = program.round_operands(federation)
        start = programs.first_leaves.trace(
            *at(home, (program.runs, replace(federation, data=program.data.shell), operands[-1])),
            layout=layout,
        )
        rounds = programs.one_round.trace(*placed(operands), layout=layout)
        block, block_samples = there(program.scored_splits, program.width)
        shapes = program.block_operands(block)
        scores = programs.scores.trace(*placed(shapes), layout=layout, extra=program.adapt)
        copies = len(devices)  # of samples: every device has those of all of the cohort
        coming, coming_block = (
            nbytes(place(rows, mesh, RUNS, AXIS), platform) for rows in (operands[1], shapes[1])
        )
        moved = nbytes(operands[1])
        clients, data = program.federation.num_clients, program.data
        drawn = program.federation.participation.cohort_size
        wanted = clients if program.scored is None else len(program.scored)
        host = HostCosts(
            scores=scores.lower(),
            blocks=-(-wanted // program.width),
            coming=coming + copies * nbytes(samples, platform),
            coming_block=coming_block + copies * nbytes(block_samples, platform),
            rows=moved // drawn * min(drawn * program.rounds, clients),
            samples=data.samples.nbytes + data.labels.nbytes,
            to_device=moved + copies * nbytes(samples),
            from_device=moved,
        )
        estimate = program.memory()
        return Lowered(start.lower(), rounds.lower(), estimate, program.federation, host)
