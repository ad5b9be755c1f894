"""Makes a program fit into the free memory."""

from dataclasses import replace

from fedjax_pfl.errors import InputError, gigabytes
from fedjax_pfl.simulation.memory import Memory
from fedjax_pfl.simulation.program import Program


def fitting(program: Program, limit: int | None) -> tuple[Program, Memory | None]:
    """The program, with fewer clients side by side where that number is automatic.

    Its estimate as well, None where there is none.

    Args:
      program: as it was asked for.
      limit: bytes there are, or None if unknown.

    Raises:
      InputError: it can't fit; with the estimate.
    """
    estimate = program.memory()
    if limit is None or estimate is None or estimate.total <= limit:
        return program, estimate
    federation = program.federation
    lanes = federation.execution.lanes(federation.num_clients)
    while federation.execution.auto and lanes > 1:
        lanes //= 2
        narrower = replace(federation, execution=replace(federation.execution, chunk=lanes))
        program = replace(program, federation=narrower)
        estimate = program.memory()
        if estimate is None or estimate.total <= limit:
            return program, estimate
    raise InputError(
        f"{type(program.runs.algorithm).name} with {federation.num_clients} clients of "
        f"{federation.plan.num_parameters:,} parameters and {program.num_runs} run(s) would take "
        f"about {estimate}, but there are {gigabytes(limit)}: take fewer clients or runs at a "
        "time, a smaller model, or client_execution='map'."
    )
