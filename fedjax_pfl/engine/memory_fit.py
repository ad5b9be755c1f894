"""Reduction of lanes, or offloading of state, to fit a program into memory."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import replace

import jax

from fedjax_pfl.engine.host_program import HostProgram
from fedjax_pfl.engine.memory import available
from fedjax_pfl.engine.program import NO_ROOM, Program
from fedjax_pfl.engine.tpu_memory import with_lanes_on_chip
from fedjax_pfl.execution import processes
from fedjax_pfl.federation.data_sharding import distribute
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.errors import InputError, gigabytes, warn


def available_to(federation: Federation) -> int | None:
    """Return the memory of all processes together, based on the smallest; None if unknown."""
    each = max(federation.execution.all_devices // processes.count(), 1)
    limits = processes.exchange(available(each))
    known = [limit for limit in limits if limit is not None]
    return min(known) * len(limits) if len(known) == len(limits) else None


def check_held(program: Program, limit: int | None) -> None:
    """Raise `InputError` if data and states alone exceed `limit` bytes; nothing is compiled."""
    if limit is None or (held := program.held()).total <= limit:
        return
    moved = _offloaded(program)
    if moved is None or moved.held().total > limit:
        raise _refusal(program, limit, f"at least {held}")


def compile_in(pool: Executor, program: Program) -> Callable[[], float]:
    """Begin to compile a program in the threads of a pool, for `fit_memory` to find.

    Returns:
      A function that waits, and returns the seconds of tracing and compiling.
    """
    program, limit = _placed(with_lanes_on_chip(program)), available_to(program.federation)
    if limit is not None and program.held().total > limit:  # `fit_memory` finds another form
        return lambda: 0.0
    return program.compile_in(pool)


def fit_memory(program: Program, limit: int | None) -> Program:
    """Return the program with as many lanes as fit, and its samples on their devices.

    An automatic number of lanes is reduced on a TPU until a local step fits into its on-chip memory
    (`tpu_memory`), and halved until the compiler's plan is within the limit. JAX caches the
    compiled program for the rounds. Without a limit nothing is compiled.

    Args:
      program: of the requested execution.
      limit: available bytes, or None if unknown.

    Raises:
      InputError: it does not fit, nor does offloaded client state if that may be chosen.
    """
    program = with_lanes_on_chip(program)
    if limit is None:
        return _placed(program)
    found, need = _narrowed(program, limit)
    if found is None and (moved := _offloaded(program)) is not None:
        found, _ = _narrowed(moved, limit)
        if found is not None:
            warn(
                f"{type(program.runs.algorithm).name} keeps clients' state in host memory "
                f"(client_state='host'): on the device it would take {need}, and there are "
                f"{gigabytes(limit)}."
            )
    if found is None:
        raise _refusal(program, limit, need)
    return found


def _narrowed(program: Program, limit: int) -> tuple[Program | None, str]:
    """Return the program with as many lanes as fit, or None; and the memory it takes, in words."""
    held = program.held()
    if held.total > limit:
        return None, f"at least {held}"
    program = _placed(program)
    cohort = program.federation.participation.cohort_size
    while True:
        try:
            memory = program.memory()
            if memory.total <= limit:
                return program, f"about {memory}"
            need = f"about {memory}"
        except jax.errors.JaxRuntimeError as error:
            if NO_ROOM not in str(error):
                raise
            need = f"more than a device has ({str(error).splitlines()[0]})"
        federation = program.federation
        lanes = federation.execution.lanes(cohort) if federation.execution.auto else 1
        if lanes == 1:
            return None, need
        execution = replace(federation.execution, max_lanes=lanes // 2)
        program = replace(program, federation=replace(federation, execution=execution))


def _placed(program: Program) -> Program:
    if isinstance(program, HostProgram):  # whose samples stay on the host
        return program
    return replace(program, federation=distribute(program.federation))


def _offloaded(program: Program) -> HostProgram | None:
    """Return the program with client state on the host, if that may be chosen and is possible."""
    if program.federation.execution.client_state != "auto":
        return None
    try:
        return HostProgram.of(program)
    except InputError:
        return None


def _refusal(program: Program, limit: int, need: str) -> InputError:
    federation = program.federation
    return InputError(
        f"{type(program.runs.algorithm).name} with {federation.num_clients} clients of "
        f"{federation.plan.num_parameters:,} parameters and {program.num_runs} run(s) would take "
        f"{need}, but there are {gigabytes(limit)}: take {_less(program)}."
    )


def _less(program: Program) -> str:
    """Suggest ways to need less memory."""
    federation = program.federation
    execution = federation.execution
    ways = ["fewer clients or runs at a time" if program.num_runs > 1 else "fewer clients"]
    ways += ["a smaller model"]
    if execution.platform != "cpu":
        ways += ["more devices"]
    if not execution.auto and execution.lanes(federation.num_clients) > 1:
        ways += ["client_execution='map'"]
    return f"{', '.join(ways[:-1])} or {ways[-1]}"
