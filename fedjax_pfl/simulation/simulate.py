"""Rounds in chunks: the host's side of a simulation."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from fedjax_pfl.contract.algorithm import Algorithm
from fedjax_pfl.errors import InputError, gigabytes, require, require_whole
from fedjax_pfl.execution.packing import padding_efficiency
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.results.result import Result
from fedjax_pfl.simulation.checkpoints import Checkpoints, check_same, fingerprint
from fedjax_pfl.simulation.collector import Collector
from fedjax_pfl.simulation.costs import step_flops
from fedjax_pfl.simulation.memory import Memory, available
from fedjax_pfl.simulation.program import (
    MAX_RUNS,
    Final,
    Program,
    Runs,
    make_runs,
    placed,
    served,
    uses_extra_loss,
)
from fedjax_pfl.values import is_list, number


class Interrupted(Exception):
    """A simulation that was asked to stop, and did between two chunks.

    Attributes:
      round: rounds done; kept in the checkpoints, if there are any.
    """

    def __init__(self, done: int):
        super().__init__(f"Stopped after round {done}.")
        self.round = done


class Progress(NamedTuple):
    """What a progress callback is told between chunks.

    Attributes:
      round: rounds done.
      rounds: rounds of the run.
      accuracy: mean over runs and clients of the last scored personalized test accuracy, or None.
      seconds: wall time since the first round, compilation apart.
    """

    round: int
    rounds: int
    accuracy: float | None
    seconds: float


def simulate(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int,
    *,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Sequence] | None = None,
    eval_every: int = 1,
    chunk: int = 50,
    chunk_seconds: float = 2.0,
    matrix_rounds: Sequence[int] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    progress: Callable[[Progress], None] | None = None,
    checkpoints: Checkpoints | None = None,
    stop: Callable[[], bool] | None = None,
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
      chunk: at most so many rounds in one call of the program.
      chunk_seconds: chunks are kept near this length, so that progress shows; the length is
        traced and changes neither program nor results.
      matrix_rounds: rounds (counted from 1) whose mixing matrices are kept; by default the first,
        the middle and the last.
      adapt: also score copies that were adapted locally, as "adapted".
      score_clients: permanent ids of the clients whose models are scored; means, tables and curves
        are then over them, and the others' scores are NaN. All whom the algorithm serves by
        default.
      progress: called between chunks.
      checkpoints: where state and measurements are kept between chunks. A simulation that finds
        some goes on from there, and ends with the same bits as one that was never interrupted.
      stop: asked between chunks; once it says yes, a checkpoint is written and `Interrupted`
        raised.

    Returns:
      A `Result`; its arrays have the axes (seed, setting, round, client).

    Raises:
      InputError: whatever of this can't be, checkpoints of another simulation included; before
        anything is compiled.
      Interrupted: `stop` said so.
      OutputError: a checkpoint can't be written; those before it are kept.
    """
    if adapt is not None:
        require(isinstance(adapt, Adaptation), "adapt", adapt, "an Adaptation, or None")
        adapt.validate()
    require_whole("rounds", rounds, 1)
    require_whole("eval_every", eval_every, 1)
    require_whole("chunk", chunk, 1)
    if not (isinstance(chunk_seconds, float) and chunk_seconds == math.inf):
        chunk_seconds = number("chunk_seconds", chunk_seconds, "at least 0")
    allowed = "one or more whole numbers in 0..2^31-1"
    require(is_list(seeds) and len(seeds) > 0, "seeds", seeds, allowed)
    require(len(seeds) <= MAX_RUNS, "seeds", seeds, f"at most {MAX_RUNS:,}")
    require(all(_whole(s) and 0 <= s < 2**31 for s in seeds), "seeds", seeds, allowed)
    if matrix_rounds is None:
        matrix_rounds = sorted({1, (rounds + 1) // 2, rounds})
    allowed = f"rounds in 1..{rounds}"
    require(is_list(matrix_rounds), "matrix_rounds", matrix_rounds, f"a list of {allowed}")
    bad = [r for r in matrix_rounds if not (_whole(r) and 1 <= r <= rounds)]
    require(not bad, "matrix_rounds", bad, allowed)
    federation, runs, scored = _resolved(algorithm, federation, seeds, settings, score_clients)
    _check_counts(algorithm, federation, rounds, adapt)
    program = Program(
        runs=runs,
        federation=federation,
        rounds=rounds,
        eval_every=eval_every,
        capacity=chunk,
        adapt=adapt,
        scored=scored,
    )
    program, _ = fitting(program, available())
    federation = program.federation
    collector = Collector(eval_every, rounds, matrix_rounds)
    mark, saved = {}, None
    if checkpoints is not None:
        checkpoints.check()
        mark = fingerprint(program, matrix_rounds)
        saved = checkpoints.latest()
        if saved is not None:
            check_same(saved.facts["simulation"], mark, checkpoints.folder)
    began = time.perf_counter()
    states = program.start()
    # A chunk of no rounds compiles the program and runs nothing of it.
    states, buffers, matrices = program.advance(states, 0, 0)
    compile_seconds = time.perf_counter() - began
    done, length, spent = 0, 1, 0.0
    if saved is not None:
        done = saved.round
        leaves = [jax.device_put(leaf) for leaf in saved.trees["states"]]
        states = placed(jax.tree.unflatten(jax.tree.structure(states), leaves), federation)
        collector.restore(saved.trees, jax.tree.structure(buffers), jax.tree.structure(matrices))
        spent = sum(collector.paces)

    def keep():
        trees = {"states": states, **collector.trees()}
        checkpoints.save(done, trees, {"simulation": mark})

    while done < rounds:
        stops = [r for r in (*matrix_rounds, rounds) if r > done]
        length = min(length, chunk, min(stops) - done)
        began = time.perf_counter()
        states, buffers, matrices = program.advance(states, done, length)
        seconds = time.perf_counter() - began
        spent += seconds
        done += length
        collector.add(length, buffers, matrices, seconds)
        if progress is not None:
            progress(Progress(done, rounds, collector.accuracy(), spent))
        length = max(1, int(min(chunk_seconds * length / max(seconds, 1e-9), chunk)))
        stopped = done < rounds and stop is not None and stop()
        if checkpoints is not None and (stopped or (done < rounds and checkpoints.due())):
            keep()
        if stopped:
            raise Interrupted(done)

    swept = {} if settings is None else {k: np.asarray(v) for k, v in settings.items()}
    return Result(
        algorithm=algorithm.name,
        hyperparameters=algorithm.hyperparameters(),
        seeds=tuple(int(s) for s in seeds),
        settings=swept,
        num_clients=federation.num_clients,
        num_parameters=federation.plan.num_parameters,
        client_ids=np.asarray(federation.data.ids),
        test_sizes=np.asarray(federation.data.test.size),
        train_sizes=np.asarray(federation.data.train.size),
        block_sizes=federation.plan.shared_block_sizes(),
        blocks=federation.plan.blocks,
        item_bytes=np.dtype(federation.task.dtype).itemsize,
        compile_seconds=compile_seconds,
        seconds_per_round=collector.seconds_per_round() / program.num_runs,
        padding_efficiency=padding_efficiency(federation.steps(), federation.execution),
        execution=str(federation.execution),
        flops_per_step=step_flops(federation),
        remarks=tuple(algorithm.remarks(federation)),
        final=Final(program, states),
        **collector.collect((len(seeds), -1)),
    )


def fitting(program: Program, limit: int | None) -> tuple[Program, Memory | None]:
    """The program, with fewer clients side by side where their number is ours to choose.

    Its estimate as well, None where there is none.

    Args:
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


def estimate_memory(
    algorithm: Algorithm,
    federation: Federation,
    *,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Sequence] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    chunk: int = 50,
) -> Memory | None:
    """What `simulate` with these arguments takes at most; traced, not compiled.

    None, with a warning, where this version of JAX gives no estimate.

    Raises:
      InputError: see `simulate`.
    """
    federation, runs, scored = _resolved(algorithm, federation, seeds, settings, score_clients)
    program = Program(runs, federation, chunk, capacity=chunk, adapt=adapt, scored=scored)
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
      InputError: `simulate` would refuse it, for lack of memory or another reason.
    """
    federation, runs, scored = _resolved(algorithm, federation, seeds, None, score_clients)
    return fitting(Program(runs, federation, 50, adapt=adapt, scored=scored), available())[1]


def check_simulation(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int = 1,
    *,
    settings: Mapping[str, Sequence] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
) -> None:
    """Raises `InputError` where `simulate` would for these; nothing is compiled."""
    federation, _, _ = _resolved(algorithm, federation, (0,), settings, score_clients)
    _check_counts(algorithm, federation, rounds, adapt)


def _check_counts(algorithm, federation, rounds: int, adapt: Adaptation | None) -> None:
    """Raises `InputError` where local steps are too many to be counted in the program."""
    capacity = federation.data.train.capacity
    for schedule in algorithm.schedules(federation):
        schedule.check_counts(capacity, rounds)
    for how in filter(None, (adapt, algorithm.adaptation())):
        how.schedule(federation.schedule).check_counts(capacity)


def _resolved(algorithm, federation, seeds, settings, score_clients):
    """(federation as the algorithm wants it, runs, rows of the clients to score or None),
    checked."""
    algorithm.validate()
    federation = algorithm.prepare(federation)
    algorithm.check(federation)
    if not algorithm.has_step(federation).any():
        raise InputError(f"No client would take a local step: {_why_no_step(federation)}.")
    runs = make_runs(algorithm, federation, seeds, settings)
    if federation.extra_loss is not None and not uses_extra_loss(runs, federation):
        raise InputError(
            f"{algorithm.name} has local steps of its own, to which no extra loss can be added."
        )
    scored = None if score_clients is None else _scored_rows(score_clients, runs, federation)
    return federation, runs, scored


def _why_no_step(federation: Federation) -> str:
    schedule, most = federation.schedule, int(np.asarray(federation.data.train.size).max())
    if schedule.steps == 0 or (schedule.steps is None and schedule.epochs == 0):
        return f"{'local_epochs' if schedule.steps is None else 'local_steps'} is 0"
    if most == 0:
        return "none has training samples"
    return (
        f"drop_last leaves out batches of fewer than {schedule.samples_per_step} samples, and "
        f"none has more than {most}; take a smaller batch_size, or keep the last batch"
    )


def _scored_rows(clients: Sequence[int], runs: Runs, federation: Federation) -> tuple[int, ...]:
    """Rows of the clients to score, ascending.

    Raises:
      InputError: none, an unknown one, one without test samples, or one that the algorithm does not
        make a model for.
    """
    ids = np.asarray(federation.data.ids)
    require(is_list(clients) and len(clients) > 0, "score_clients", clients, "at least one client")
    unknown = [c for c in clients if not (_whole(c) and c in ids)]
    require(not unknown, "score_clients", unknown, f"clients in {ids.min()}..{ids.max()}")
    rows = np.flatnonzero(np.isin(ids, clients))
    for known, allowed in (
        (np.asarray(federation.data.test.size) > 0, "clients with test samples"),
        (served(runs, federation).all(axis=0), "clients that the algorithm makes a model for"),
    ):
        without = ids[rows[~known[rows]]].tolist()
        require(not without, "score_clients", without, allowed)
    return tuple(rows.tolist())


def _whole(value) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
