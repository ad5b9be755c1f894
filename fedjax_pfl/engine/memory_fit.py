"""Reduction of lanes, or offloading of state, to fit a program into memory.

The estimate is needed before a program is compiled: it decides which program that is.
"""

import warnings
from dataclasses import replace

from fedjax_pfl.engine.memory import Memory
from fedjax_pfl.engine.offloaded_state import offloaded_program
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.tpu_memory import resident
from fedjax_pfl.utils.errors import DoesNotFit, InputError, gigabytes

MARGIN = 1.15  # compilers for accelerators may plan so much more than the estimate


def fit_memory(program: Program, limit: int | None) -> tuple[Program, Memory | None]:
    """Return the program and its estimate, with fewer lanes if their number is automatic.

    Lanes are reduced until the program fits, and on a TPU until a local step fits into its on-chip
    memory (`tpu_memory`). On accelerators, where a program that is too large fails, `MARGIN` is
    left while lanes can be taken away. The estimate is None where this version of JAX gives none.

    Args:
      program: of the requested execution.
      limit: available bytes, or None if unknown.

    Raises:
      DoesNotFit: it does not fit; with the estimate.
    """
    program = resident(program)
    estimate = program.memory()
    federation = program.federation
    execution = federation.execution
    lanes = execution.lanes(federation.num_clients) if execution.auto else 1
    while True:
        margin = 1 if execution.platform == "cpu" or lanes == 1 else MARGIN
        if limit is None or estimate is None or estimate.total * margin <= limit:
            return program, estimate
        if lanes == 1:
            break
        lanes //= 2
        narrower = replace(federation, execution=replace(execution, chunk=lanes))
        program = replace(program, federation=narrower)
        estimate = program.memory()
    if execution.client_state == "auto":
        moved = _on_host(program, limit, estimate)
        if moved is not None:
            return moved
    raise DoesNotFit(
        f"{type(program.runs.algorithm).name} with {federation.num_clients} clients of "
        f"{federation.plan.num_parameters:,} parameters and {program.num_runs} run(s) would take "
        f"about {estimate}, but there are {gigabytes(limit)}: take {_less(program)}."
    )


def _less(program: Program) -> str:
    """Suggest ways to need less memory."""
    federation = program.federation
    execution = federation.execution
    ways = ["fewer clients or runs at a time" if program.num_runs > 1 else "fewer clients"]
    ways += ["a smaller model"]
    if execution.platform != "cpu":
        ways += ["more devices"]
    if execution.lanes(federation.num_clients) > 1:
        ways += ["client_execution='map'"]
    return f"{', '.join(ways[:-1])} or {ways[-1]}"


def _on_host(
    program: Program, limit: int, estimate: Memory
) -> tuple[Program, Memory | None] | None:
    """Return the program with offloaded client state and its estimate; None if it is refused."""
    try:
        moved = offloaded_program(program)
    except InputError:
        return None
    less = moved.memory()
    if less is None or less.total > limit:
        return None
    warnings.warn(
        f"{type(program.runs.algorithm).name} keeps clients' state in host memory "
        f"(client_state='host'): on the device it would take about {gigabytes(estimate.total)} of "
        f"{gigabytes(limit)}.",
        stacklevel=3,
    )
    return moved, less
