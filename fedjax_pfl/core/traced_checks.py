"""Checks of the arguments and results of an algorithm's functions while they are traced."""

import contextlib
import itertools
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core.algorithm_registry import is_static
from fedjax_pfl.core.client_privacy import check_uploads_differ, is_amplified
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.extended_state import (
    ExtendedState,
    algorithm_state,
    extend_initial_state,
    extend_state,
)
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.persistent_optimizers import Optimizers
from fedjax_pfl.core.record import Record
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.core.sample_privacy import with_counted_gradients
from fedjax_pfl.core.upload_memory import UploadMemory
from fedjax_pfl.models.frozen_backbone import overlaid
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import by_field, client_axes
from fedjax_pfl.utils.typing import Rows, State, Tree

CONCRETIZATION_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@contextlib.contextmanager
def while_traced(algorithm: Algorithm, function: str) -> Iterator[None]:
    """Context manager that explains Python control flow on traced numbers.

    Raises:
      InputError: the function needs the concrete value of a traced number; the message names the
        line and what to write instead.
    """
    try:
        yield
    except CONCRETIZATION_ERRORS as error:
        raise _explained(algorithm, function, error) from error


def _explained(algorithm: Algorithm, function: str, error: Exception) -> InputError:
    file = getattr(sys.modules.get(type(algorithm).__module__), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == file or frame.name == function]
    where, line = "", ""
    if own:
        line = (own[-1].line or linecache.getline(own[-1].filename, own[-1].lineno or 0)).strip()
        where = f" in line {own[-1].lineno}, `{line}`," if line else f" in line {own[-1].lineno}"
    traced = [f.name for f in fields(algorithm) if not is_static(f)]
    named = [key for key in traced if re.search(rf"\bself\.{key}\b", line)]
    remedy = "Compute both ways and choose with jax.numpy.where, or branch with jax.lax.cond"
    if named:
        value = getattr(type(algorithm), named[0], ...)
        default = "..." if value is ... else repr(value)
        remedy += (
            f"; or, where {named[0]} need not be swept inside one program, make it part of it: "
            f"{named[0]}: {type(value).__name__ if value is not ... else 'float'} = "
            f"pfl.core.static(default={default})"
        )
    return InputError(
        f"{algorithm.name}.{function} asks{where} for the value of a traced number, as `if` and "
        f"`int()` do: while a program is traced it has none. {remedy}."
    )


def outside_rounds(algorithm: Algorithm, ctx: Context, function: str) -> Context:
    """Return the context for a function outside of rounds, which must release nothing private.

    An upload under client-level privacy, and a gradient with noise, raise `UncountedRelease`.
    """
    where = f"{algorithm.name}.{function}"
    return with_counted_gradients(replace(ctx, outside=where), RoundObserver(where))


def with_partial_rows(
    state: State, rows: Rows, count: int, reader: Callable[..., Any] | None = None
) -> State:
    """Wrap the leaves of a state whose other rows are in host memory.

    Args:
      state: per-client leaves are [count, ...], or [k, ...] for the clients `rows`; the latter
        become `trees.PartialLeaf`. A state without such leaves is returned unchanged.
      rows: int32 [k], fewer than `count`.
      count: N, the number of clients.
      reader: reads other rows, see `trees.PartialLeaf`; leaves are numbered in their order.
    """
    numbers = itertools.count()

    def some(value: Tree, axes: int) -> Tree:
        if axes != 1:
            return value

        def one(leaf):
            if len(leaf) == count:
                return leaf
            return trees.PartialLeaf(leaf, rows, count, reader, next(numbers))

        return jax.tree.map(one, value)

    return by_field(some, state)


def checked_init(algorithm: Algorithm, ctx: Context) -> State:
    """Return `algorithm.init(ctx)`, with persistent optimizer states if clients keep them.

    Its types are those that a round returns: weakly typed leaves, such as Python numbers, would
    compile the rounds a second time.

    Raises:
      InputError: the optimizer states can't be kept.
      TypeError: the state is not a `struct`, a field does not declare its client axes or lacks
        them, or a leaf is a typed random key.
      UncountedRelease: see `outside_rounds`.
    """
    with while_traced(algorithm, "init"):
        state, name = algorithm.init(outside_rounds(algorithm, ctx, "init")), algorithm.name
    if not hasattr(type(state), "__dataclass_fields__"):
        raise TypeError(
            f"{name}.init must return a state, a class decorated with struct, got "
            f"{type(state).__name__}."
        )
    for field, declared in client_axes(state).items():
        axes = declared or 0
        for path, leaf in jax.tree_util.tree_flatten_with_path(getattr(state, field))[0]:
            if jnp.issubdtype(jax.typeof(leaf).dtype, jax.dtypes.extended):
                raise TypeError(
                    f"{name}.init: {field}{jax.tree_util.keystr(path)} is a random key, no "
                    "array of numbers: take each round's from ctx.key_for(purpose), or keep "
                    "jax.random.key_data(key)."
                )
            if jax.numpy.shape(leaf)[:axes] != (ctx.num_clients,) * axes:
                raise TypeError(
                    f"{name}.init: {field}{jax.tree_util.keystr(path)} must lead with "
                    f"{axes} client axes of {ctx.num_clients}, got {jax.numpy.shape(leaf)}."
                )
    state = extend_initial_state(algorithm, ctx, state)
    if not any(map(_is_weak, jax.tree.leaves(state))):
        return state
    after, _ = jax.eval_shape(partial(checked_round, algorithm, ctx), state)
    return jax.tree.map(
        lambda leaf, then: jnp.asarray(leaf, then.dtype) if _is_weak(leaf) else leaf, state, after
    )


def _is_weak(leaf: object) -> bool:
    return jax.typeof(leaf).weak_type


def with_nonfinite(
    algorithm: Algorithm, ctx: Context, state: State, observer: RoundObserver, record: Record
) -> Record:
    """Add to a record the clients whose values aggregation, not training, made non-finite.

    Args:
      state: state after the round.
      observer: of the round, with the rows that `Cohort.scatter` refused.
      record: the round's record. The result has `clients["nonfinite"]`, bool [N], for clients whose
        values are not finite or were refused, and, if the server holds floating-point values,
        `scalars["server_nonfinite"]`, 1 if some of them are not finite.
    """
    lost = jnp.zeros((ctx.num_clients,), bool) if observer.nonfinite is None else observer.nonfinite
    of_clients, server = [], []
    by_field(lambda value, axes: (of_clients if axes == 1 else server).append(value), state)
    partial_rows = any(isinstance(leaf, trees.PartialLeaf) for leaf in jax.tree.leaves(of_clients))
    if algorithm.absent_kept or partial_rows:  # absent clients' rows are unchanged
        rows = ctx.cohort.gather(of_clients)
        lost |= ctx.cohort.spread(~trees.rows_finite(rows, ctx.cohort.size), False)
    else:
        lost |= ~trees.rows_finite(of_clients, ctx.num_clients)
    scalars = record.scalars
    if any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(server)):
        bad = 1 - trees.is_finite(server).astype(ctx.dtype)
        scalars = {**scalars, "server_nonfinite": bad}
    return replace(record, clients=record.clients | {"nonfinite": lost}, scalars=scalars)


def with_base(algorithm: Algorithm, ctx: Context, state: State) -> Context:
    """Return the context with the frozen leaves that the server changed, `updated_base`.

    Raises:
      TypeError: they are not leaves of the backbone.
    """
    with while_traced(algorithm, "updated_base"):
        outside = outside_rounds(algorithm, ctx, "updated_base")
        changed = algorithm.updated_base(outside, algorithm_state(state))
    if changed is None:
        return ctx
    backbone = overlaid(ctx.federation.backbone, changed, f"{algorithm.name}.updated_base: ")
    return replace(ctx, federation=replace(ctx.federation, backbone=backbone))


def with_all_releases(record: Record, observer: RoundObserver, noisy: bool = False) -> Record:
    """Return the record with at least the local steps and participants that were counted.

    Privacy accounting reads them from the record. Where gradients are `noisy`, those that were
    counted are all.
    """
    counted, steps = {}, observer.steps
    if steps is not None:
        known = steps if noisy else jnp.maximum(record.clients["local_steps"], steps)
        counted["local_steps"] = known
    if observer.sent is not None:
        counted["participated"] = record.clients["participated"] | (observer.sent > 0)
    return replace(record, clients=record.clients | counted) if counted else record


def checked_round(
    algorithm: Algorithm, ctx: Context, state: State, observer: RoundObserver | None = None
) -> tuple[State, Record]:
    """Run `algorithm.round(ctx, state)` and add its forward passes to the record.

    Per-client leaves of the state may hold only the cohort's rows (see `with_partial_rows`).

    Args:
      algorithm, ctx, state: of the round.
      observer: observes the round; by default one of its own.

    Raises:
      RowsNotOnDevice: the round needs other rows.
      UncountedRelease: under privacy, the round releases what can't be counted.
      TypeError: the round does not return a state of the same structure, shapes and types, and a
        record.
    """
    name, observer = algorithm.name, observer or RoundObserver()
    partial_state = with_partial_rows(state, ctx.cohort.rows, ctx.num_clients, ctx.reader)
    optimizers = memory = None
    if isinstance(partial_state, ExtendedState):
        if partial_state.optimizers:
            optimizers = Optimizers(name, partial_state.optimizers)
        memory = UploadMemory(name, partial_state, ctx.plan)
    ctx = with_counted_gradients(with_base(algorithm, ctx, partial_state), observer)
    observed = replace(ctx.cohort, observer=observer)
    observer.cohort = observed
    observer.amplified = is_amplified(algorithm, ctx.federation)
    counting = replace(
        ctx, cohort=observed, observer=observer, optimizers=optimizers, memory=memory
    )
    with while_traced(algorithm, "round"):
        returned = algorithm.round(counting, algorithm_state(partial_state))
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    if not (pair and isinstance(returned[1], Record)):
        kinds = ", ".join(
            type(part).__name__
            for part in (returned if isinstance(returned, tuple | list) else (returned,))
        )
        raise TypeError(f"{name}.round must return (state, ctx.record(...)), got {kinds}.")
    observer.check_recorded()
    check_uploads_differ(algorithm, ctx.federation, observer)
    returned_state, record = returned
    noisy = ctx.federation.sample_privacy is not None
    record = with_all_releases(record, observer, noisy)
    new = extend_state(returned_state, optimizers, memory, state)
    new = trees.device_values(new)
    if jax.tree.structure(new) != jax.tree.structure(state):
        raise TypeError(
            f"{name}.round must return a state of the same structure: "
            f"{jax.tree.structure(state)}, got {jax.tree.structure(new)}."
        )
    before, after = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (state, new))
    for (path, old), (_, leaf) in zip(before, after, strict=True):
        old, leaf = jax.typeof(old), jax.typeof(leaf)
        text = (
            f"{name}.round must return state{jax.tree_util.keystr(path)} of the same type, "
            f"{old.str_short()}, got {leaf.str_short()}. "
        )
        if old.shape != leaf.shape:
            raise TypeError(
                f"{text}Put the values of the cohort's members back among all clients with "
                "ctx.cohort.scatter(stack, values)."
            )
        becomes_it = old.weak_type and jnp.promote_types(old.dtype, leaf.dtype) == leaf.dtype
        if old.dtype != leaf.dtype and not becomes_it:
            raise TypeError(f"{text}Cast one of the two.")
    record = with_nonfinite(algorithm, ctx, returned_state, observer, record)
    if observer.rule_acted is not None:
        acted = {"rule_acted": observer.rule_acted}
        record = replace(record, scalars=record.scalars | acted)
    if observer.forward_samples is not None:
        counted = {"forward_samples": observer.forward_samples}
        record = replace(record, clients=record.clients | counted)
    return new, record
