"""Makes a program fit into the free memory."""

import warnings
from dataclasses import replace

from fedjax_pfl.engine.memory import Memory
from fedjax_pfl.engine.offloaded_state import offloaded_program
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.tpu_memory import resident
from fedjax_pfl.utils.errors import DoesNotFit, InputError, gigabytes

MARGIN = 1.15  # a compiler for accelerators may plan so much more than is estimated


def fit_memory(program: Program, limit: int | None) -> tuple[Program, Memory | None]:
    """The program, with fewer clients side by side where that number is automatic.

    So many that a local step stays on a TPU's chip (`tpu_memory`), and that the program fits. Its
    estimate as well, None where there is none. On accelerators, where a program that is too large
    fails, there is to be a margin as long as there are clients to take from.

    Args:
      program: as it was asked for.
      limit: bytes there are, or None if unknown.

    Raises:
      DoesNotFit: it can't fit; with the estimate.
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
    """What to take for a program to need less memory."""
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
    """The program with per-client state in host memory, and its estimate; None if that can't be."""
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
