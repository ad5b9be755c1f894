"""One algorithm's program, compiled for a target: seconds, memory, transfers, cycles."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.utils.typing import Device

from . import hlo
from .costs import Costs, count, total_cycles
from .targets import Chip, Target

# Over a model in a local step: weights are read twice and written, gradients written and read.
PASSES = 5
HOST = ("rows", "samples", "to_device", "from_device")
NO_ROOM = "RESOURCE_EXHAUSTED"  # begins a compiler's message on a program that is too large


@dataclass
class Plan:
    """Compiled facts of an algorithm's program on a target.

    Attributes:
      lanes: clients that one device trains side by side.
      fits: whether the device's memory is enough; None where there is an `error`.
      trace_seconds, compile_seconds: of this machine; all programs together.
      planned: bytes of one device by kind, and their sum "total"; empty where the compiler gave up.
      costs: of one round of all seeds.
      step_floor: cycles that a local step takes at least, for all lanes' weights to pass through
        memory; None where cycles are unknown.
      host: bytes on the host, and moved in a round, for clients' state in host memory (see
        `pfl.engine.Lowered.host`): "rows", "samples", "to_device" and "from_device"; else empty.
      cycles: of one round, models being scored as often as asked; None where the compiler expects
        none.
      rounds_per_second: of all seeds together, estimated from the cycles.
      message: of the compiler where it does not fit.
      error: why there is no program: what the compiler said where it failed for another reason, or
        what can't be planned.
    """

    lanes: int = 0
    fits: bool | None = None
    trace_seconds: float = 0.0
    compile_seconds: float = 0.0
    planned: dict[str, int] = field(default_factory=dict)
    costs: Costs | None = None
    step_floor: float | None = None
    host: dict[str, int] = field(default_factory=dict)
    cycles: float | None = None
    rounds_per_second: float | None = None
    message: str | None = None
    error: str | None = None


def widest(
    algorithm: pfl.Algorithm,
    federation: pfl.Federation,
    target: Target,
    devices: Sequence[Device],
    **options: Any,
) -> Plan:
    """Compile with as many lanes as fit, halving an automatic number.

    If one is too many and `client_state` is "auto", clients' state is on the host where it can be.
    `options` are those of `simulate`.
    """

    def other(**changes: Any) -> pfl.Federation:
        return replace(federation, execution=replace(federation.execution, **changes))

    result = _compiled(algorithm, federation, target, devices, **options)
    if result.fits is not False:
        return result
    narrower = result.lanes // 2 if federation.execution.auto else 0
    if narrower and result.planned.get("arguments", 0) <= target.chip.memory:
        return widest(algorithm, other(max_lanes=narrower), target, devices, **options)
    if federation.execution.client_state != "auto":
        return result
    moved = widest(algorithm, other(client_state="host"), target, devices, **options)
    return result if moved.error else moved


def _compiled(
    algorithm: pfl.Algorithm,
    federation: pfl.Federation,
    target: Target,
    devices: Sequence[Device],
    rounds: int = 1,
    eval_every: int = 1,
    mesh: str = "auto",
    **options: Any,
) -> Plan:
    result = Plan()
    begun = time.perf_counter()
    try:
        simulation = pfl.Simulation(algorithm, federation, eval_every=eval_every, **options)
        lowered = simulation.lower(devices, rounds, mesh=mesh)
    except pfl.InputError as error:
        return Plan(error=str(error))
    result.trace_seconds = time.perf_counter() - begun
    execution, cohorts = lowered.federation.execution, lowered.federation.participation
    result.lanes = execution.lanes(cohorts.cohort_size)
    parts, host = [lowered.start, lowered.rounds], lowered.host
    beside = [0, 0] if host is None else [0, host.coming, host.coming_block]
    begun = time.perf_counter()
    try:
        parts += [] if host is None else [host.scores]
        compiled = [one.compile(compiler_options=target.compiler_options) for one in parts]
    except jax.errors.JaxRuntimeError as error:
        message = str(error).splitlines()[0]
        if NO_ROOM in message:
            result.fits, result.message = False, message
        else:
            result.error = message
        return result
    finally:
        result.compile_seconds = time.perf_counter() - begun
    kinds = [_memory(one, size // len(devices)) for one, size in zip(compiled, beside, strict=True)]
    result.planned = max(kinds, key=lambda one: one["total"])
    result.fits = result.planned["total"] <= target.chip.memory
    modules = [hlo.parse(one.as_text() or "") for one in compiled[1:]]
    result.costs = count(modules[0])
    if host is not None:
        result.costs.evaluation = host.blocks * total_cycles(modules[1])
        result.host = {name: getattr(host, name) for name in HOST}
    chip = target.chip
    if chip.clock is None:
        return result
    result.cycles = result.costs.cycles(eval_every)
    if result.cycles:
        result.rounds_per_second = chip.clock / result.cycles
        runs = len(options.get("seeds", (0,))) if execution.seeds == "vmap" else 1
        result.step_floor = step_floor(lowered.federation, result.lanes * runs, chip)
    return result


def step_floor(federation: pfl.Federation, lanes: int, chip: Chip) -> float | None:
    """Return the fewest cycles of a local step of some lanes, by the memory's bandwidth.

    Activations and samples, which may stay on the chip, are not counted.
    """
    if chip.clock is None or chip.bandwidth is None:
        return None
    size = federation.plan.num_parameters * np.dtype(federation.task.dtype).itemsize
    return PASSES * lanes * size / chip.bandwidth * chip.clock


def _memory(compiled: jax.stages.Compiled, coming: int) -> dict[str, int]:
    """Return the bytes of one device by kind, and "total"; aliased outputs count once.

    `coming` are the bytes of the next block from the host, for clients' state in host memory.
    """
    stats: Any = compiled.memory_analysis()
    kinds = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes - stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "code": stats.generated_code_size_in_bytes,
        **({"coming": coming} if coming else {}),
    }
    return kinds | {"total": sum(kinds.values())}
