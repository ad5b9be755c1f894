"""Functions that a simulation compiles: initial states, rounds, scores and models."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import traced_checks
from fedjax_pfl.core.client_privacy import state_for_new_clients
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.extended_state import algorithm_state
from fedjax_pfl.engine.evaluation import evaluate, named_models, score_rows
from fedjax_pfl.engine.runs import Run, over_runs
from fedjax_pfl.engine.state_sharding import pack_states, placed, placed_measured, unpack_states
from fedjax_pfl.engine.state_store import Address, Reader
from fedjax_pfl.execution.mesh import RUNS, execution_mesh, mesh_of, place, sharing
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.typing import Rows, Scalar, State, Tree


class Chunk(NamedTuple):
    """Results of one call of the program.

    Attributes:
      states: after its last round, leaves [R, ...].
      buffers: measurements of every round, leaves [R, capacity, ...]; the first `length` are
        filled.
      matrices: of its last round, leaves [R, ...].
    """

    states: State
    buffers: Tree
    matrices: Tree


# An inlined jit caches its trace, so `eval_shape` and a later call trace only once. The lowered
# program is the same as without it.
traced_once = partial(jax.jit, inline=True)


def runs_once(fn: Callable[..., Any], platform: str, **options: Any) -> Any:
    """Return the jit of a function that runs once: for CPUs XLA takes half the time, or a sixth."""
    quick = {"xla_backend_optimization_level": "0"} if platform == "cpu" else None
    return jax.jit(fn, compiler_options=quick, **options)


def initial_state(run: Run, federation: Federation, total) -> State:
    """Return the state of one run before its first round."""
    return traced_checks.checked_init(run.algorithm, run.context(federation, jnp.int32(0), total))


def start(runs: Run, federation: Federation, total) -> State:
    """Return the states before the first round; see `Program.start`."""
    return placed(over_runs(initial_state, runs, federation, total), federation)


@cache
def starter(platform: str) -> Any:
    """Return the jit of `start`."""
    return runs_once(start, platform)


def round_context(
    run: Run,
    federation: Federation,
    t: Scalar,
    total: Scalar,
    address: Address | None = None,
    clients: Rows | None = None,
) -> Context:
    """Return the context of one run's round.

    Args:
      address: where rows of state are read that are not on the device; None where all are there.
      clients: those whose rows and samples are on the device then, by default the cohort.
    """
    ctx = run.context(federation, t, total)
    if address is None:
        return ctx
    data = replace(ctx.federation.data, device_rows=ctx.cohort.rows if clients is None else clients)
    ctx = replace(ctx, federation=replace(ctx.federation, data=data))
    if not address.readable:
        return ctx
    # Of several devices that share clients, the first one reads for all.
    shared = federation.execution.devices > 1
    mesh = execution_mesh(federation.execution) if shared else mesh_of(1)
    return replace(ctx, reader=Reader(address, mesh))


ADVANCE: dict[str, Any] = {  # options of its jit
    "static_argnames": ("capacity", "adapt", "scored"),
    "donate_argnums": (0,),
}


@partial(jax.jit, **ADVANCE)
def advance(states, runs, federation, t, length, total, eval_every, capacity, adapt, scored):
    """Run a chunk of rounds; see `Program.advance`."""

    @traced_once
    def one_round(run, state, address, federation, now, total, eval_every):
        """Return one run's state after round `now`, its measurements and matrices."""
        ctx = round_context(run, federation, now, total, address)
        with sharing(federation.execution) if address is None else nullcontext():
            state, record = traced_checks.checked_round(run.algorithm, ctx, state)
        own = algorithm_state(state)
        due = ((now + 1) % eval_every == 0) | (now + 1 == total)
        measure = traced_once(partial(evaluate, run.algorithm, ctx, own, adapt, scored))
        unscored = partial(filled, jax.eval_shape(measure), jnp.nan)
        with jax.named_scope("evaluation"):
            scores = lax.cond(due, measure, unscored)
        measured = {name: getattr(record, name) for name in ("clients", "scalars", "up", "down")}
        return state, measured | {"scores": scores}, record.matrices

    def chunk(operand, federation, t, length, total, eval_every):
        run, state, address = operand
        run = run.with_backbone(federation)

        def step(state, now):
            return one_round(run, state, address, federation, now, total, eval_every)

        def body(i, carry):
            state, buffers, _ = carry
            state, measured, matrices = step(state, t + i)
            buffers = jax.tree.map(lambda buffer, new: buffer.at[i].set(new), buffers, measured)
            return state, buffers, matrices

        _, measured, matrices = jax.eval_shape(step, state, t)
        first = (state, filled(measured, 0, (capacity,)), filled(matrices, 0))
        with jax.named_scope("rounds"):
            return lax.fori_loop(0, length, body, first)

    numbers, operands = (t, length, total, eval_every), (runs, *unpack_states(states, federation))
    state, buffers, matrices = over_runs(chunk, operands, federation, *numbers)
    buffers, matrices = placed_measured(buffers, matrices, federation)
    return Chunk(pack_states(state, states, federation), buffers, matrices)


def filled(shapes: Tree, value, lead: tuple[int, ...] = ()) -> Tree:
    """Return arrays of given shapes with leading axes `lead`, filled with a value."""
    return jax.tree.map(lambda s: jnp.full((*lead, *s.shape), value, s.dtype), shapes)


@jax.jit
def models(states, runs, federation, t, total, rows):
    """Return models of the clients `rows` [k]; see `Program.models`."""

    def models_of(operand, federation, t, total, rows):
        run, state, address = operand
        state = algorithm_state(state)
        ctx = round_context(run, federation, t, total, address, rows)
        ctx = traced_checks.with_base(run.algorithm, ctx, state)
        named = named_models(run.algorithm, ctx, state, rows)
        own = run.algorithm.adaptation()
        if own is None:
            return named
        return {**named, "personalized": ctx.adapt(named["personalized"], rows, own)}

    operands = runs, *unpack_states(states, federation)
    return over_runs(models_of, operands, federation, t, total, rows)


@jax.jit
def personalize(states, runs, federation, new_clients, t, total):
    """Return models of new clients; see `Program.personalize`."""

    def of_run(operand, federation, new_clients, t, total):
        run, state = operand
        state = algorithm_state(state)
        contexts = (run.context(fed, t, total) for fed in (federation, new_clients))
        ctx, new = (traced_checks.with_base(run.algorithm, one, state) for one in contexts)
        state = state_for_new_clients(run.algorithm, ctx, state)
        ctx = traced_checks.outside_rounds(run.algorithm, ctx, "personalize")
        return run.algorithm.personalize(ctx, state, new.of_new_clients())

    operands = runs, unpack_states(states, federation)[0]
    return over_runs(of_run, operands, federation, new_clients, t, total)


@jax.jit
def backbone(states, runs, federation, t, total):
    """Return the leaves that no client's model contains; see `Program.backbone`."""

    def of_run(operand, federation, t, total):
        run, state = operand
        ctx = traced_checks.with_base(run.algorithm, run.context(federation, t, total), state)
        return ctx.federation.backbone

    operands = runs, unpack_states(states, federation)[0]
    return over_runs(of_run, operands, federation, t, total)


def first_leaves(runs, federation, total, layout):
    """Return the leaves before the first round: those on the device, and the others."""

    def of_run(run, federation, total):
        replicated: list[tuple[Any, Any]] = []
        ctx = replace(run.context(federation, jnp.int32(0), total), replicated=replicated)
        device, stacks = layout.parted(traced_checks.checked_init(run.algorithm, ctx))
        one_row = {id(stack): jnp.asarray(row)[None] for stack, row in replicated}
        return device, [one_row.get(id(stack), stack) for stack in stacks]

    device, first = over_runs(of_run, runs, federation, total)
    return place(device, execution_mesh(federation.execution), RUNS), first


@cache
def first_leaves_of(platform: str) -> Any:
    """Return the jit of `first_leaves`."""
    return runs_once(first_leaves, platform, static_argnames=("layout",))


@partial(jax.jit, static_argnames=("adapt",))
def scores(states, runs, federation, t, total, clients, adapt):
    """Return scores [R, k] after round `t` of `clients` [k], whose rows the states have."""

    def scores_of(operand, federation, t, total, clients):
        run, state, address = operand
        ctx = round_context(run.with_backbone(federation), federation, t, total, address, clients)
        own = algorithm_state(state)
        return score_rows(run.algorithm, ctx, own, adapt, clients)

    with jax.named_scope("evaluation"):
        operands = runs, *unpack_states(states, federation)
        return over_runs(scores_of, operands, federation, t, total, clients)


@jax.jit
def cohort_rows(runs, federation, t):
    """Return the rows of the clients in each run's cohort of round `t`, int32 [R, M]."""

    def of_run(run, federation, t):
        return run.context(federation, t, t).cohort.rows

    return over_runs(of_run, runs, federation, t)
