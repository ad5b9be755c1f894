"""Rounds as one compiled program: chunks of traced length, seeds and settings as mapped axes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import keys
from fedjax_pfl.algorithm import Algorithm, Context
from fedjax_pfl.clients import padding_efficiency
from fedjax_pfl.errors import InputError, require, unknown_name
from fedjax_pfl.evaluation import Adaptation, evaluate
from fedjax_pfl.federation import Federation
from fedjax_pfl.registry import is_static
from fedjax_pfl.results import Result
from fedjax_pfl.structs import client_axes, struct

Tree = Any
RATES = ("learning_rate", "learning_rate_decay")


@struct
class Runs:
    """The mapped axis: R runs that differ in seed and traced settings; leaves [R, ...]."""

    algorithm: Algorithm
    seed: jax.Array
    learning_rate: jax.Array
    learning_rate_decay: jax.Array


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
    progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Runs a method for a number of rounds, for all seeds and settings in one program.

    Args:
      algorithm: the method with its hyperparameters.
      federation: clients, data, local training.
      rounds: communication rounds T.
      seeds: each varies initialisation, cohorts and batches; never the partition.
      settings: values to sweep inside the program, by name: traced hyperparameters of the method,
        "learning_rate" or "learning_rate_decay". All of one length H: setting h takes the h-th
        value of each.
      eval_every: score the models after every so many rounds, and after the last.
      chunk: at most so many rounds in one call of the program.
      chunk_seconds: chunks are kept near this length, so that progress shows; the length is
        traced and changes neither program nor results.
      matrix_rounds: rounds (counted from 1) whose mixing matrices are kept; by default the first,
        the middle and the last.
      adapt: also score copies that were adapted locally, as "adapted".
      progress: called between chunks.

    Returns:
      A `Result`; its arrays have the axes (seed, setting, round, client).

    Raises:
      InputError: whatever of this can't be; before anything is compiled.
    """
    algorithm.validate()
    if adapt is not None:
        adapt.validate()
    require(_whole(rounds) and rounds >= 1, "rounds", rounds, "a whole number of at least 1")
    require(_whole(eval_every) and eval_every >= 1, "eval_every", eval_every, "at least 1")
    require(_whole(chunk) and chunk >= 1, "chunk", chunk, "at least 1")
    require(len(seeds) > 0 and all(_whole(s) and 0 <= s < 2**31 for s in seeds), "seeds", seeds,
            "one or more whole numbers in 0..2^31-1")  # fmt: skip
    if matrix_rounds is None:
        matrix_rounds = sorted({1, (rounds + 1) // 2, rounds})
    bad = [r for r in matrix_rounds if not (_whole(r) and 1 <= r <= rounds)]
    require(not bad, "matrix_rounds", bad, f"rounds in 1..{rounds}")
    runs = make_runs(algorithm, federation, seeds, settings)
    capacity = min(chunk, rounds)
    collector = _Collector(eval_every, rounds, matrix_rounds)
    advance = partial(
        _advance,
        runs=runs,
        federation=federation,
        total=np.int32(rounds),
        eval_every=np.int32(eval_every),
        capacity=capacity,
        extra=adapt,
    )
    began = time.perf_counter()
    states = _start(runs, federation, np.int32(rounds))
    # A chunk of no rounds compiles the program and runs nothing of it.
    states, *_ = jax.block_until_ready(advance(states, t=np.int32(0), length=np.int32(0)))
    compile_seconds = time.perf_counter() - began

    done, length, spent = 0, 1, 0.0
    while done < rounds:
        stops = [r for r in (*matrix_rounds, rounds) if r > done]
        length = min(length, capacity, min(stops) - done)
        began = time.perf_counter()
        output = advance(states, t=np.int32(done), length=np.int32(length))
        states, buffers, matrices = jax.block_until_ready(output)
        seconds = time.perf_counter() - began
        spent += seconds
        done += length
        collector.add(length, buffers, matrices, seconds)
        if progress is not None:
            progress(Progress(done, rounds, collector.accuracy(), spent))
        length = max(1, int(chunk_seconds * length / max(seconds, 1e-9)))

    swept = {} if settings is None else {k: np.asarray(v) for k, v in settings.items()}
    return Result(
        algorithm=algorithm.name,
        hyperparameters=algorithm.hyperparameters(),
        seeds=tuple(int(s) for s in seeds),
        settings=swept,
        num_clients=federation.num_clients,
        num_parameters=federation.plan.num_parameters,
        test_sizes=np.asarray(federation.data.test.size),
        train_sizes=np.asarray(federation.data.train.size),
        block_sizes=federation.plan.shared_block_sizes(),
        blocks=federation.plan.blocks,
        item_bytes=np.dtype(federation.task.dtype).itemsize,
        compile_seconds=compile_seconds,
        seconds_per_round=collector.seconds_per_round() / len(runs.seed),
        padding_efficiency=padding_efficiency(
            federation.data.train, federation.schedule, federation.execution
        ),
        execution=str(federation.execution),
        final=Final(algorithm, federation, runs, states, rounds),
        **collector.collect((len(seeds), -1)),
    )


def make_runs(
    algorithm: Algorithm,
    federation: Federation,
    seeds: Sequence[int],
    settings: Mapping[str, Sequence] | None = None,
) -> Runs:
    """All combinations of seeds and settings, seeds outermost, as host arrays [R, ...].

    Raises:
      InputError: a setting that does not exist, is static, or has no valid value; unequal lengths.
    """
    settings = dict(settings or {})
    traced = [f.name for f in fields(algorithm) if not is_static(f)]
    for name, values in settings.items():
        if name in (f.name for f in fields(algorithm)) and name not in traced:
            raise InputError(
                f"{name!r} of {algorithm.name!r} is part of the program's structure and can't be "
                "swept inside it; simulate each of its values."
            )
        if name not in (*traced, *RATES):
            raise unknown_name(f"setting of {algorithm.name!r}", name, (*traced, *RATES))
        require(len(values) > 0, f"setting {name!r}", values, "at least one value")
    lengths = {name: len(values) for name, values in settings.items()}
    require(len(set(lengths.values())) <= 1, "settings", lengths, "lists of equal length")
    count = next(iter(lengths.values()), 1)
    dtype = federation.task.dtype
    rates = {name: np.asarray(getattr(federation, name)) for name in RATES}
    variants = []
    for h in range(count):
        chosen = {name: values[h] for name, values in settings.items()}
        variant = replace(algorithm, **{k: v for k, v in chosen.items() if k in traced})
        variant.validate()
        rate = {name: np.asarray(chosen.get(name, rates[name]), dtype) for name in RATES}
        require(rate["learning_rate"] >= 0, "learning_rate", rate["learning_rate"], "at least 0")
        variant = jax.tree.map(lambda leaf: _strong(leaf, dtype), variant)
        variants.append(Runs(algorithm=variant, seed=np.uint32(0), **rate))
    grid = [replace(variant, seed=np.uint32(seed)) for seed in seeds for variant in variants]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *grid)


def _strong(leaf, dtype) -> np.ndarray:
    """Strongly typed: a Python number would compile the program a second time."""
    leaf = np.asarray(leaf)
    kinds = {"f": dtype, "i": "int32", "u": "int32"}
    return leaf.astype(kinds.get(leaf.dtype.kind, leaf.dtype))


def _whole(value) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _context(federation: Federation, run: Runs, t, total) -> Context:
    federation = replace(
        federation, learning_rate=run.learning_rate, learning_rate_decay=run.learning_rate_decay
    )
    key = jax.random.key(run.seed)
    cohort = federation.participation.cohort(keys.derive(key, "cohort"), t, federation.data.ids)
    return Context(federation=federation, key=key, t=t, total=total, cohort=cohort)


def _over_runs(fn: Callable, federation: Federation, operands: Tree) -> Tree:
    """Maps over the leading axis of runs, as lanes or one by one (see `Execution.seeds`)."""
    if federation.execution.seeds == "vmap":
        return jax.vmap(fn)(operands)
    return lax.map(fn, operands)


@jax.jit
def _start(runs: Runs, federation: Federation, total) -> Tree:
    def one(run):
        state = run.algorithm.init(_context(federation, run, jnp.int32(0), total))
        client_axes(state)  # complains where a field does not declare its client axes
        return state

    return _over_runs(one, federation, runs)


@partial(jax.jit, static_argnames=("capacity", "extra"), donate_argnums=(0,))
def _advance(states, runs, federation, t, length, total, eval_every, capacity, extra):
    """`length` rounds from round `t`; (states, buffers [R, capacity, ...], last matrices [R, ...])."""

    def one(operand):
        run, state = operand

        def play(i, state):
            now = t + i
            ctx = _context(federation, run, now, total)
            state, record = run.algorithm.round(ctx, state)
            due = ((now + 1) % eval_every == 0) | (now + 1 == total)
            shapes = jax.eval_shape(lambda: evaluate(run.algorithm, ctx, state, extra))
            scores = lax.cond(
                due,
                lambda: evaluate(run.algorithm, ctx, state, extra),
                lambda: jax.tree.map(lambda s: jnp.full(s.shape, jnp.nan, s.dtype), shapes),
            )
            kept = {
                "scores": scores,
                "clients": record.clients,
                "scalars": record.scalars,
                "up": record.up,
                "down": record.down,
            }
            return state, kept, record.matrices

        def body(i, carry):
            state, buffers, _ = carry
            state, kept, matrices = play(i, state)
            buffers = jax.tree.map(lambda buffer, new: buffer.at[i].set(new), buffers, kept)
            return state, buffers, matrices

        _, kept, matrices = jax.eval_shape(play, jnp.int32(0), state)
        zeros = partial(jax.tree.map, lambda s: jnp.zeros(s.shape, s.dtype))
        rows = partial(jax.tree.map, lambda s: jnp.zeros((capacity, *s.shape), s.dtype))
        return lax.fori_loop(0, length, body, (state, rows(kept), zeros(matrices)))

    return _over_runs(one, federation, (runs, states))


@dataclass(frozen=True)
class Final:
    """The end of a simulation on the device: from here models are taken and clients are added."""

    algorithm: Algorithm
    federation: Federation
    runs: Runs
    states: Tree
    rounds: int

    def models(self, rows: Sequence[int] | None = None) -> dict[str, Tree]:
        """Models after the last round, by name: [runs, k, ...], or [runs, ...] if `Shared`."""
        count = self.federation.num_clients
        rows = np.arange(count) if rows is None else np.asarray(rows)
        bad = [int(r) for r in rows if not 0 <= r < count]
        require(not bad, "rows", bad, f"clients in 0..{count - 1}")
        return _models(
            self.states, self.runs, self.federation, np.int32(self.rounds), rows.astype(np.int32)
        )

    def personalize(self, newcomers: Federation) -> Tree:
        """Models of clients that never took part, leaves [runs, K, ...]."""
        return _personalize(
            self.states, self.runs, self.federation, newcomers, np.int32(self.rounds)
        )


@jax.jit
def _models(states, runs, federation, total, rows):
    def one(operand):
        run, state = operand
        return run.algorithm.models(_context(federation, run, total - 1, total), state, rows)

    return _over_runs(one, federation, (runs, states))


@jax.jit
def _personalize(states, runs, federation, newcomers, total):
    def one(operand):
        run, state = operand
        ctx = _context(federation, run, total - 1, total)
        new = _context(newcomers, run, total - 1, total)
        return run.algorithm.personalize(ctx, state, new)

    return _over_runs(one, federation, (runs, states))


class _Collector:
    """Gathers the buffers of the chunks on the host."""

    def __init__(self, eval_every: int, rounds: int, matrix_rounds: Sequence[int]):
        every = np.arange(1, rounds + 1)
        self.due = (every % eval_every == 0) | (every == rounds)
        self.matrix_rounds = sorted({int(r) for r in matrix_rounds})
        self.done = 0
        self.parts, self.matrices, self.paces = [], [], []

    def add(self, length: int, buffers: Tree, matrices: Tree, seconds: float) -> None:
        # Whole buffers are fetched and cut here: cutting on the device compiles for each length.
        self.parts.append(jax.tree.map(lambda leaf: np.array(leaf)[:, :length], buffers))
        self.done += length
        self.paces += [seconds / length] * length
        if self.done in self.matrix_rounds:
            self.matrices.append(jax.tree.map(np.array, matrices))

    def accuracy(self) -> float | None:
        for part in reversed(self.parts):
            scores = part["scores"].get("personalized/test/accuracy")
            if scores is not None and np.isfinite(scores).any():
                seen = np.isfinite(scores).any(axis=(0, 2))
                return float(np.nanmean(scores[:, np.flatnonzero(seen)[-1]]))
        return None

    def seconds_per_round(self) -> float:
        return float(np.median(self.paces))

    def collect(self, axes: tuple[int, int]) -> dict[str, Any]:
        """Fields of `Result`: [R, T, ...] becomes [S, H, T, ...]."""

        def split(leaf):
            return leaf.reshape(axes[0], leaf.shape[0] // axes[0], *leaf.shape[1:])

        whole = jax.tree.map(lambda *leaves: split(np.concatenate(leaves, axis=1)), *self.parts)
        stacked = jax.tree.map(lambda *leaves: split(np.stack(leaves, axis=1)), *self.matrices)
        return {
            "eval_rounds": np.flatnonzero(self.due) + 1,
            "scores": {name: value[:, :, self.due] for name, value in whole["scores"].items()},
            "clients": whole["clients"],
            "scalars": whole["scalars"],
            "copies_up": whole["up"],
            "copies_down": whole["down"],
            "matrices": stacked,
            "matrix_rounds": np.asarray(self.matrix_rounds),
        }
