"""The programs of a simulation whose clients keep their state in host memory (see
`offloaded_state`)."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedjax_pfl.core import checks, persistent_optimizers
from fedjax_pfl.core.context import Context
from fedjax_pfl.engine.evaluation import named_models, score_rows
from fedjax_pfl.engine.host_reads import Address, Reader
from fedjax_pfl.engine.program import filled, measured_round, with_adapted
from fedjax_pfl.engine.runs import over_runs
from fedjax_pfl.execution.mesh import AXIS, RUNS, mesh_of, place, rows_of
from fedjax_pfl.execution.processes import several
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.typing import Rows, State


class Layout(NamedTuple):
    """Which leaves of a state lie on the host; the same for all runs.

    Attributes:
      tree: structure of the state.
      hosted: for each leaf.
    """

    tree: Any
    hosted: tuple[bool, ...]

    def joined(self, kept: Sequence[Any], rows: Sequence[Any]) -> State:
        """The state of leaves on the device, and those on the host, in their order."""
        here, there = iter(kept), iter(rows)
        leaves = [next(there if hosted else here) for hosted in self.hosted]
        return jax.tree.unflatten(self.tree, leaves)

    def parted(self, state: State) -> tuple[list[Any], list[Any]]:
        """The reverse of `joined`."""
        leaves = list(zip(jax.tree.leaves(state), self.hosted, strict=True))
        return [x for x, hosted in leaves if not hosted], [x for x, hosted in leaves if hosted]


def mesh(federation: Federation) -> Mesh:
    return mesh_of(federation.execution.devices, federation.execution.runs)


def unfilled(rows: Sequence[Any], federation: Federation, count: int) -> Sequence[Any]:
    """Rows [R, K, ...] of so many clients alone, in a traced function (`mesh.rows_of`)."""
    return rows_of(rows, mesh(federation), count, RUNS, AXIS)


def there(ctx: Context, rows: Rows, at: Address) -> Context:
    """The context in which the samples of those clients alone are on the device.

    State of others is read from `at`; of several devices of a process the first one asks. The
    hosts of several processes have some rows each, which no one could read alone.
    """
    data = replace(ctx.federation.data, there=rows)
    shared = ctx.federation.execution.devices > 1  # otherwise each device asks for its own runs
    reader = None if several() else Reader(at, mesh(ctx.federation) if shared else mesh_of(1))
    return replace(ctx, federation=replace(ctx.federation, data=data), reader=reader)


@partial(jax.jit, static_argnames=("layout",))
def first_leaves(runs, federation, total, layout):
    """(leaves on the device, [R, N, ...] or [R, 1, ...] of the others) before the first round."""

    def of_run(run, federation, total):
        replicated: list[tuple[Any, Any]] = []
        ctx = replace(run.context(federation, jnp.int32(0), total), replicated=replicated)
        kept, stacks = layout.parted(checks.checked_init(run.algorithm, ctx))
        one_row = {id(stack): jnp.asarray(row)[None] for stack, row in replicated}
        return kept, [one_row.get(id(stack), stack) for stack in stacks]

    kept, first = over_runs(of_run, runs, federation, total)
    return place(kept, mesh(federation), RUNS), first


@jax.jit
def cohorts(runs, federation, t):
    def drawn(run, federation, t):
        return run.context(federation, t, t).cohort.rows

    return over_runs(drawn, runs, federation, t)


@partial(jax.jit, static_argnames=("mesh",), donate_argnums=(0,))
def merged(coming, done, at, mesh):
    """Rows [R, M, ...] with those that the round before has made, where `at` [R, M] is no -1."""
    coming, done = rows_of((coming, done), mesh, at.shape[1], RUNS, AXIS)

    def one(new, made, at):
        known = (at >= 0).reshape(at.shape + (1,) * (new.ndim - 1))
        return jnp.where(known, made[jnp.maximum(at, 0)], new)

    merged = jax.tree.map(lambda new, made: jax.vmap(one)(new, made, at), coming, done)
    return place(merged, mesh, RUNS, AXIS)


@partial(jax.jit, static_argnames=("layout",), donate_argnums=(0, 1))
def one_round(kept, rows, runs, at, federation, t, length, total, layout):
    """One round: (leaves on the device, rows [R, M, ...], measurements, matrices) after it.

    It is a loop of one turn, so that it is compiled as that of many rounds is.
    """

    def chunk(operand, federation, t, length, total):
        run, kept, rows, at = operand
        run = run.begun(federation)

        def turn(state, now):
            ctx = run.context(federation, now, total)
            return measured_round(run, there(ctx, ctx.cohort.rows, at), state)

        state = layout.joined(kept, rows)
        _, *shapes = jax.eval_shape(turn, state, t)
        first = (state, *(filled(one, 0) for one in shapes))
        with jax.named_scope("rounds[1]"):
            last = lax.fori_loop(0, length, lambda i, carry: turn(carry[0], t + i), first)
        return (*layout.parted(last[0]), *last[1:])

    rows = unfilled(rows, federation, federation.participation.cohort_size)
    kept, rows, *rest = over_runs(chunk, (runs, kept, rows, at), federation, t, length, total)
    parts = mesh(federation)
    return place(kept, parts, RUNS), place(rows, parts, RUNS, AXIS), *place(rest, parts)


@partial(jax.jit, static_argnames=("layout", "extra"))
def scores(kept, rows, runs, at, clients, federation, t, total, layout, extra):
    """Scores [R, k] of the `clients` [k], whose rows [R, k, ...] these are, after round `t`."""

    def scores_of(operand, federation, t, total, clients):
        run, kept, rows, at = operand
        run = run.begun(federation)
        ctx = there(run.context(federation, t, total), clients, at)
        own = persistent_optimizers.own(layout.joined(kept, rows))
        return score_rows(run.algorithm, ctx, own, extra, clients)

    rows = unfilled(rows, federation, len(clients))
    with jax.named_scope("evaluation"):
        return over_runs(scores_of, (runs, kept, rows, at), federation, t, total, clients)


@partial(jax.jit, static_argnames=("layout",))
def block_models(kept, rows, runs, at, clients, federation, t, total, layout):
    """Models [R, k, ...] of the `clients` [k], by name; see `Final.models`."""

    def models_of(operand, federation, t, total, clients):
        run, kept, rows, at = operand
        ctx = there(run.context(federation, t, total), clients, at)
        own = persistent_optimizers.own(layout.joined(kept, rows))
        named = named_models(run.algorithm, ctx, own, clients)
        return with_adapted(run.algorithm, ctx, named, clients)

    rows = unfilled(rows, federation, len(clients))
    return over_runs(models_of, (runs, kept, rows, at), federation, t, total, clients)
