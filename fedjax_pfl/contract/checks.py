"""Checks of what an algorithm's functions take and return, made while they are traced."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from fedjax_pfl.contract import kept_optimizers
from fedjax_pfl.contract.algorithm import Algorithm
from fedjax_pfl.contract.context import Context
from fedjax_pfl.contract.kept_optimizers import Kept
from fedjax_pfl.contract.record import Record
from fedjax_pfl.contract.tally import Tally
from fedjax_pfl.structs import client_axes
from fedjax_pfl.typing import State


def checked_init(algorithm: Algorithm, ctx: Context) -> State:
    """`algorithm.init(ctx)`, with the states of local optimizers where clients keep them.

    Raises:
      InputError: it can't keep them.
      TypeError: it is no `struct`, or a field does not declare its client axes or lacks them.
    """
    state, name = algorithm.init(ctx), algorithm.name
    if not hasattr(type(state), "__dataclass_fields__"):
        raise TypeError(
            f"{name}.init must return a state, a class decorated with struct, got "
            f"{type(state).__name__}."
        )
    for field, declared in client_axes(state).items():
        axes = declared or 0
        for path, leaf in jax.tree_util.tree_flatten_with_path(getattr(state, field))[0]:
            if jax.numpy.shape(leaf)[:axes] != (ctx.num_clients,) * axes:
                raise TypeError(
                    f"{name}.init: {field}{jax.tree_util.keystr(path)} must lead with "
                    f"{axes} client axes of {ctx.num_clients}, got {jax.numpy.shape(leaf)}."
                )
    if ctx.federation.keep_optimizer_state:
        return kept_optimizers.begin(algorithm, ctx, state)
    return state


def checked_round(algorithm: Algorithm, ctx: Context, state: State) -> tuple[State, Record]:
    """`algorithm.round(ctx, state)`, the forward passes of its loss matrices added to the record.

    Raises:
      TypeError: it does not return a state of the same structure, shapes and types, and a record.
    """
    name, tally = algorithm.name, Tally()
    optimizers = None
    if isinstance(state, Kept):
        optimizers = kept_optimizers.Optimizers(name, state.optimizers)
    counting = replace(ctx, tally=tally, optimizers=optimizers)
    returned = algorithm.round(counting, kept_optimizers.own(state))
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    if not (pair and isinstance(returned[1], Record)):
        kinds = ", ".join(
            type(part).__name__
            for part in (returned if isinstance(returned, tuple | list) else (returned,))
        )
        raise TypeError(f"{name}.round must return (state, ctx.record(...)), got {kinds}.")
    new, record = returned
    new = new if optimizers is None else Kept(new, optimizers.phases)
    if jax.tree.structure(new) != jax.tree.structure(state):
        raise TypeError(
            f"{name}.round must return a state of the same structure: "
            f"{jax.tree.structure(state)}, got {jax.tree.structure(new)}."
        )
    before, after = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (state, new))
    for (path, old), (_, leaf) in zip(before, after, strict=True):
        old, leaf = jax.typeof(old), jax.typeof(leaf)
        said = (
            f"{name}.round must return state{jax.tree_util.keystr(path)} of the same type, "
            f"{old.str_short()}, got {leaf.str_short()}. "
        )
        if old.shape != leaf.shape:
            raise TypeError(
                f"{said}Put the values of the cohort's members back among all clients with "
                "ctx.cohort.scatter(stack, values)."
            )
        becomes_it = old.weak_type and jnp.promote_types(old.dtype, leaf.dtype) == leaf.dtype
        if old.dtype != leaf.dtype and not becomes_it:
            raise TypeError(f"{said}Cast one of the two.")
    if tally.samples is not None:
        counted = {"forward_samples": tally.samples}
        record = replace(record, clients=record.clients | counted)
    return new, record
