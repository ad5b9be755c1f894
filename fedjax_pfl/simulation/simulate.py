"""Simulates an algorithm for a number of rounds, or estimates the memory for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from fedjax_pfl.contract.algorithm import Algorithm
from fedjax_pfl.errors import require
from fedjax_pfl.execution import memory_maps, processes, shares
from fedjax_pfl.execution.locations import short_locations
from fedjax_pfl.execution.mesh import described
from fedjax_pfl.execution.packing import fitted, padding_efficiency
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.spreading import spread
from fedjax_pfl.results.result import Result
from fedjax_pfl.simulation import request, watching
from fedjax_pfl.simulation.checkpoints import Checkpoints
from fedjax_pfl.simulation.chunks import Chunks, Progress
from fedjax_pfl.simulation.costs import forward_flops, step_flops
from fedjax_pfl.simulation.final import Final
from fedjax_pfl.simulation.fitting import fitting
from fedjax_pfl.simulation.hosted import HostedProgram
from fedjax_pfl.simulation.memory import Memory, available
from fedjax_pfl.simulation.patience import checked_patience
from fedjax_pfl.simulation.program import Lowered
from fedjax_pfl.simulation.runs import remarks
from fedjax_pfl.typing import Device


@short_locations()
def simulate(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int,
    *,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Sequence[Any]] | None = None,
    eval_every: int = 1,
    chunk: int | None = None,
    chunk_seconds: float = 2.0,
    matrix_rounds: Sequence[int] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[Progress], bool] | None = None,
    patience: int | None = None,
) -> Result:
    """Runs an algorithm for a number of rounds, for all seeds and settings in one program.

    Args:
      algorithm: the algorithm with its hyperparameters.
      federation: clients, data, local training.
      rounds: communication rounds T.
      seeds: each varies initialisation, cohorts and batches; never the partition.
      settings: values to sweep inside the program, by name: traced hyperparameters of the
        algorithm, "learning_rate" or "learning_rate_decay". All of one length H: setting h takes
        the h-th value of each.
      eval_every: score the models after every so many rounds, and after the last.
      chunk: rounds in one call of the program, at most. Between two calls measurements come to the
        host, `progress` and `stop` are called and checkpoints are written. By default 1 with
        `stop`, else 50. No result depends on it.
      chunk_seconds: chunks have fewer rounds where these take longer than this.
      matrix_rounds: rounds (counted from 1) whose mixing matrices are kept; by default the first,
        the middle and the last.
      adapt: also score copies that were adapted locally, as "adapted".
      score_clients: permanent ids of the clients whose models are scored; means, tables and curves
        are then over them, and the others' scores are NaN. By default all clients for which the
        algorithm makes models.
      progress: called after each chunk with a `Progress`, whose `progress.result()` has all
        measurements so far. True prints a line of text, which says first that the program compiles;
        `LiveCurves().of(name)` also draws curves that grow, in a notebook.
      checkpoints: where state and measurements are kept between chunks. A simulation that finds
        some continues from there, and ends with the same bits as one without interruption; also if
        they are of fewer rounds.
      stop: called with a `Progress` after each chunk, which is one round unless `chunk` says
        otherwise; once it returns true, a checkpoint is written and the rounds end.
      patience: the rounds end after so many without a new best mean validation accuracy (or
        headline of another task), of any run (seed and setting). Which round that is depends
        on nothing but the measurements.

    Returns:
      A `Result`; its arrays have the axes (seed, setting, round, client). Where the rounds ended
      early it has those that were simulated, and `result.stopped` says why.

    Raises:
      InputError: an argument can't be used, or the checkpoints are another simulation's; before
        anything is compiled.
      OutputError: a checkpoint can't be written; those before it are kept.
    """
    program = request.checked_program(
        algorithm,
        federation,
        rounds,
        seeds=seeds,
        settings=settings,
        adapt=adapt,
        score_clients=score_clients,
        eval_every=eval_every,
        chunk=request.CHUNK if chunk is None else chunk,
    )
    chunk_seconds = request.checked_seconds(chunk_seconds)
    longest = 1 if stop is not None and chunk is None else None
    request.check_stop(stop)
    made = "a Checkpoints, or None"
    fits = checkpoints is None or isinstance(checkpoints, Checkpoints)
    require(fits, "checkpoints", checkpoints, made)
    matrix_rounds = request.checked_matrix_rounds(matrix_rounds, rounds)
    patience = checked_patience(patience, algorithm, program.federation, adapt)
    memory_maps.make_room()
    program, _ = fitting(program, _available(federation))
    if not isinstance(program, HostedProgram):  # whose samples stay on the host
        program = replace(program, federation=spread(program.federation))
    shown = watching.shown(progress, algorithm.name)
    if isinstance(program, HostedProgram) and checkpoints is not None:
        program = replace(program, folder=checkpoints.folder)
    chunks = Chunks(program, matrix_rounds, checkpoints, patience)
    swept = {name: np.asarray(values) for name, values in (settings or {}).items()}
    numbers = tuple(int(seed) for seed in seeds)
    counted = cache(lambda name: COUNTED[name](chunks.program.federation))
    so_far = partial(_result, algorithm, numbers, swept, chunks, counted)
    try:
        chunks.run(chunk_seconds, shown, stop, so_far, longest)
    finally:  # a callback may raise
        watching.end(shown)
    end = Final(program, chunks.states, chunks.done)
    return replace(so_far(), final=end)


COUNTED = {"step": step_flops, "forward": forward_flops}  # FLOPs, by tracing


def _result(
    algorithm: Algorithm,
    seeds: tuple[int, ...],
    settings: dict[str, np.ndarray],
    chunks: Chunks,
    counted: Callable[[str], float | None],
) -> Result:
    """The result of the rounds done, with the facts for tables and without models."""
    program, collector = chunks.program, chunks.collector
    federation = program.federation
    measured = collector.collect((len(seeds), -1))
    rounds = chunks.done if chunks.stopped else program.rounds
    common, single = remarks(algorithm, federation, settings, rounds)
    ids, names = np.asarray(federation.data.ids), dict(federation.client_names)
    scored_candidates = "forward_samples" in measured["clients"]
    return Result(
        algorithm=algorithm.name,
        hyperparameters=algorithm.hyperparameters(),
        training=federation.training.numbers(),
        seeds=seeds,
        settings=settings,
        num_clients=federation.num_clients,
        num_parameters=federation.plan.num_parameters,
        client_ids=ids,
        client_names=tuple(names[client] for client in ids.tolist()) if names else (),
        test_sizes=np.asarray(federation.data.test.size),
        train_sizes=np.asarray(federation.data.train.size),
        block_sizes=federation.plan.shared_block_sizes(),
        blocks=federation.plan.blocks,
        item_bytes=np.dtype(federation.task.dtype).itemsize,
        compile_seconds=chunks.compile_seconds,
        seconds_per_round=collector.seconds_per_round() / program.num_runs,
        padding_efficiency=padding_efficiency(federation.steps(), federation.execution),
        execution=str(federation.execution),
        flops_per_step=counted("step"),
        flops_per_forward=counted("forward") if scored_candidates else None,
        remarks=common,
        setting_remarks=single,
        measures=federation.measures,
        stopped=chunks.stopped,
        rounds_asked=program.rounds if chunks.stopped else None,
        **measured,
    )


def estimate_memory(
    algorithm: Algorithm,
    federation: Federation,
    *,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Sequence[Any]] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    chunk: int = request.CHUNK,
) -> Memory | None:
    """The most memory that `simulate` with these arguments takes; traced, not compiled.

    None, with a warning, where this version of JAX gives no estimate.

    Raises:
      InputError: see `simulate`.
    """
    program = request.checked_program(
        algorithm,
        federation,
        seeds=seeds,
        settings=settings,
        adapt=adapt,
        score_clients=score_clients,
        chunk=chunk,
    )
    return program.memory()


def check_memory(
    algorithm: Algorithm,
    federation: Federation,
    *,
    seeds: Sequence[int] = (0,),
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
) -> Memory | None:
    """`estimate_memory`, with fewer clients side by side where only that fits.

    Raises:
      InputError: `simulate` would refuse this, for lack of memory or another reason.
    """
    program = request.checked_program(
        algorithm, federation, seeds=seeds, adapt=adapt, score_clients=score_clients
    )
    return fitting(program, _available(federation))[1]


def _available(federation: Federation) -> int | None:
    """Bytes that all processes together may take, by the one that has the least."""
    each = max(federation.execution.all_devices // processes.count(), 1)
    limits = processes.exchange(available(each))
    known = [limit for limit in limits if limit is not None]
    return min(known) * len(limits) if len(known) == len(limits) else None


@short_locations()
def lower_simulation(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int = 1,
    *,
    devices: Sequence[Device],
    limit: int | None = None,
    mesh: str = shares.AUTO,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Sequence[Any]] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    eval_every: int = 1,
    chunk: int = request.CHUNK,
) -> Lowered:
    """The program of `simulate` for devices that are only described; nothing is compiled or run.

    Args:
      algorithm, federation, rounds: those of `simulate`, like all that follow `mesh`.
      devices: in place of those that the federation was made for; such as
        `jax.experimental.topologies.get_topology_desc` gives.
      limit: bytes of one device. Fewer clients run side by side where only that fits, and where
        their number is automatic.
      mesh: how clients and runs share the devices, in place of the federation's (`federate`).

    Raises:
      DoesNotFit: the devices lack the memory.
      InputError: `simulate` would refuse these for another reason.
    """
    asked = shares.Shares(len(devices)) if mesh == shares.AUTO else shares.parsed(mesh)
    shares.check(asked, len(devices), f"there are {len(devices)}")
    alike = replace(federation.execution, devices=asked.clients, runs=asked.runs, fill=1.0)
    alike = replace(alike, runs_first=mesh == shares.AUTO)
    federation = replace(federation, execution=fitted(alike, federation.steps()))
    with described(devices):
        program = request.checked_program(
            algorithm,
            federation,
            rounds,
            seeds=seeds,
            settings=settings,
            adapt=adapt,
            score_clients=score_clients,
            eval_every=eval_every,
            chunk=chunk,
        )
        program, _ = fitting(program, None if limit is None else limit * len(devices))
    return program.lowered(devices)


def check_simulation(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int = 1,
    *,
    settings: Mapping[str, Sequence[Any]] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    patience: int | None = None,
) -> None:
    """Raises `InputError` where `simulate` would for these; nothing is compiled.

    How many runs there are is not known here, and so not whether the mesh fits them.
    """
    federation = federation.on_devices(replace(federation.execution, runs=1))
    program = request.checked_program(
        algorithm,
        federation,
        rounds,
        settings=settings,
        adapt=adapt,
        score_clients=score_clients,
    )
    checked_patience(patience, algorithm, program.federation, adapt)
