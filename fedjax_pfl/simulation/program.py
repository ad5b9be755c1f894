"""The compiled program of a simulation: what is mapped, what is traced, what is donated."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import keys
from fedjax_pfl.contract import checks
from fedjax_pfl.contract.algorithm import Algorithm
from fedjax_pfl.contract.context import Context
from fedjax_pfl.contract.registry import is_static
from fedjax_pfl.errors import InputError, require, unknown_name
from fedjax_pfl.execution.mesh import AXIS
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.build import check_rates
from fedjax_pfl.federation.extra_losses import ExtraLoss
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.simulation.evaluation import adapt, evaluate, named_models
from fedjax_pfl.simulation.memory import Memory, nbytes, peak
from fedjax_pfl.structs import client_axes, struct
from fedjax_pfl.typing import Tree
from fedjax_pfl.values import convert, is_list

RATES = ("learning_rate", "learning_rate_decay")
MAX_RUNS = 2**16  # seeds times settings, however small the model


@struct
class Runs:
    """The mapped axis: R runs that differ in seed and traced settings; leaves [R, ...]."""

    algorithm: Algorithm
    seed: jax.Array
    learning_rate: jax.Array
    learning_rate_decay: jax.Array


@dataclass(frozen=True)
class Program:
    """A simulation's compiled program and its fixed arguments.

    Attributes:
      runs: seeds and settings; leaves [R, ...].
      federation: clients, data, local training.
      rounds: T.
      eval_every: models are scored after every so many rounds, and after the last.
      capacity: rounds that the buffers of one call hold.
      adapt: how copies are adapted before they are scored, or None.
      scored: rows of the clients whose models are scored, or None for all.
    """

    runs: Runs
    federation: Federation
    rounds: int
    eval_every: int = 1
    capacity: int = 50
    adapt: Adaptation | None = None
    scored: tuple[int, ...] | None = None

    @property
    def num_runs(self) -> int:
        return len(self.runs.seed)

    def memory(self) -> Memory | None:
        """Estimated from the traced program; nothing is compiled.

        None, with a warning, where this version of JAX describes programs in another way: the
        estimate reads its internals.
        """
        total = np.int32(self.rounds)
        shapes = jax.eval_shape(_start, self.runs, self.federation, total)
        states = placed(shapes, self.federation)
        traced = _advance.trace(*self._operands(states, 0, 0), **self._options)
        held = nbytes(states)
        devices = self.federation.execution.devices
        data = nbytes(self.federation) * devices
        try:
            jaxpr = traced.jaxpr.jaxpr
            owned = frozenset(jaxpr.invars[: len(jax.tree.leaves(states))])
            most = peak(jaxpr, owned, devices)
        except Exception as error:
            warnings.warn(
                f"How much memory this takes can't be estimated with JAX {jax.__version__} "
                f"({type(error).__name__}: {error}), so it is not checked.",
                stacklevel=2,
            )
            return None
        return Memory(data=data, state=held, working=most - held)

    def start(self) -> Tree:
        """The states before the first round, leaves [R, ...]."""
        return _start(self.runs, self.federation, np.int32(self.rounds))

    def advance(self, states: Tree, t: int, length: int) -> tuple[Tree, Tree, Tree]:
        """Plays `length` <= capacity rounds from round `t`; `states` are used up.

        Returns:
          (states, buffers [R, capacity, ...] of which the first `length` rows are filled, matrices
          [R, ...] of the last round). Waits until they are there.
        """
        return jax.block_until_ready(_advance(*self._operands(states, t, length), **self._options))

    def _operands(self, states: Tree, t: int, length: int) -> tuple:
        numbers = (t, length, self.rounds, self.eval_every)
        return states, self.runs, self.federation, *(np.int32(number) for number in numbers)

    @property
    def _options(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "extra": self.adapt, "scored": self.scored}


@dataclass(frozen=True)
class Final:
    """The end of a simulation on the device: from here models are taken and clients are added."""

    program: Program
    states: Tree

    def models(self, rows: Sequence[int] | None = None) -> dict[str, Tree]:
        """Models after the last round, by name: [runs, k, ...], or [runs, ...] if `Broadcast`."""
        count = self.program.federation.num_clients
        rows = np.arange(count) if rows is None else np.asarray(rows)
        bad = [int(r) for r in rows if not 0 <= r < count]
        require(not bad, "rows", bad, f"clients in 0..{count - 1}")
        return _models(
            self.states,
            self.program.runs,
            self.program.federation,
            np.int32(self.program.rounds),
            rows.astype(np.int32),
        )

    def personalize(self, new_clients: Federation) -> Tree:
        """Models of clients that never took part, leaves [runs, K, ...]."""
        program = self.program
        new_clients = program.runs.algorithm.prepare(new_clients)
        return _personalize(
            self.states, program.runs, program.federation, new_clients, np.int32(program.rounds)
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
    given, allowed = type(settings).__name__, "a dict such as {'learning_rate': [0.1, 0.2]}"
    require(settings is None or isinstance(settings, Mapping), "settings", given, allowed)
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
        what = f"setting {name!r}"
        listed = is_list(values) and len(values) > 0
        require(listed, what, values, "at least one value, in a list")
        fits = len(values) * len(seeds) <= MAX_RUNS
        require(fits, what, values, f"at most {MAX_RUNS:,} values, seeds times settings")
    lengths = {name: len(values) for name, values in settings.items()}
    require(len(set(lengths.values())) <= 1, "settings", lengths, "lists of equal length")
    count = next(iter(lengths.values()), 1)
    dtype = federation.task.dtype
    rates = {name: np.asarray(getattr(federation, name)) for name in RATES}
    variants = []
    for h in range(count):
        chosen = {name: values[h] for name, values in settings.items()}
        hints = get_type_hints(type(algorithm))
        given = algorithm.hyperparameters() | {k: v for k, v in chosen.items() if k in traced}
        typed = {k: convert(k, v, hints[k]) for k, v in given.items()}
        variant = replace(algorithm, **typed)
        variant.validate()
        variant.check(federation)
        checked = check_rates(*(chosen.get(name, rates[name]) for name in RATES))
        rate = {name: np.asarray(one, dtype) for name, one in zip(RATES, checked, strict=True)}
        variant = jax.tree.map(lambda leaf: _strong(leaf, dtype), variant)
        variants.append(Runs(algorithm=variant, seed=np.uint32(0), **rate))
    grid = [replace(variant, seed=np.uint32(seed)) for seed in seeds for variant in variants]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *grid)


def _strong(leaf, dtype) -> np.ndarray:
    """Strongly typed: a Python number would compile the program a second time."""
    leaf = np.asarray(leaf)
    kinds = {"f": dtype, "i": "int32", "u": "int32"}
    return leaf.astype(kinds.get(leaf.dtype.kind, leaf.dtype))


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


def placed(states: Tree, federation: Federation) -> Tree:
    """States [R, ...] with their client axes dealt out over the execution's devices.

    Raises:
      TypeError: a field of the state does not declare its client axes.
    """
    place = federation.execution.place
    fields = {
        name: place(getattr(states, name), None, *([AXIS] if axes else []))
        for name, axes in client_axes(states).items()
    }
    return replace(states, **fields)


def served(runs: Runs, federation: Federation) -> np.ndarray:
    """bool [R, N]: the clients that each run makes models for."""
    ctx = Context(federation, key=None, t=None, total=None, cohort=None)
    return np.asarray(jax.vmap(lambda run: run.algorithm.served_clients(ctx))(runs))


def uses_extra_loss(runs: Runs, federation: Federation) -> bool:
    """Whether a round trains with the federation's extra loss; the round is traced, not run."""
    asked = []

    class Asked(ExtraLoss):
        def __call__(self, *_):
            asked.append(True)
            return 0.0

    def play():
        run = jax.tree.map(lambda leaf: leaf[0], runs)
        ctx = _context(replace(federation, extra_loss=Asked()), run, jnp.int32(0), jnp.int32(1))
        return checks.checked_round(run.algorithm, ctx, checks.checked_init(run.algorithm, ctx))

    jax.eval_shape(play)
    return bool(asked)


@jax.jit
def _start(runs: Runs, federation: Federation, total) -> Tree:
    def one(run):
        return checks.checked_init(run.algorithm, _context(federation, run, jnp.int32(0), total))

    return placed(_over_runs(one, federation, runs), federation)


@partial(jax.jit, static_argnames=("capacity", "extra", "scored"), donate_argnums=(0,))
def _advance(states, runs, federation, t, length, total, eval_every, capacity, extra, scored):
    """The compiled program, see `Program.advance`."""

    def one(operand):
        run, state = operand

        def play(i, state):
            now = t + i
            ctx = _context(federation, run, now, total)
            state, record = checks.checked_round(run.algorithm, ctx, state)
            due = ((now + 1) % eval_every == 0) | (now + 1 == total)
            measure = partial(evaluate, run.algorithm, ctx, state, extra, scored)
            shapes = jax.eval_shape(measure)
            scores = lax.cond(
                due,
                measure,
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

    states, buffers, matrices = _over_runs(one, federation, (runs, states))
    return placed(states, federation), buffers, matrices


@jax.jit
def _models(states, runs, federation, total, rows):
    def one(operand):
        run, state = operand
        ctx = _context(federation, run, total - 1, total)
        named = named_models(run.algorithm, ctx, state, rows)
        own = run.algorithm.adaptation()
        if own is not None:
            named = {**named, "personalized": adapt(ctx, named["personalized"], rows, own)}
        return named

    return _over_runs(one, federation, (runs, states))


@jax.jit
def _personalize(states, runs, federation, new_clients, total):
    def one(operand):
        run, state = operand
        ctx = _context(federation, run, total - 1, total)
        new = _context(new_clients, run, total - 1, total)
        return run.algorithm.personalize(ctx, state, new)

    return _over_runs(one, federation, (runs, states))
