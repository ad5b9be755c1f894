"""FLOPs of one local step and of one forward pass, as XLA counts them.

The number of steps that each client took is counted in the round (`Cohort.steps`) and recorded as
"local_steps"; the host multiplies the two (`Result.flops`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.models.kernels.forms import by_definition
from fedjax_pfl.training.local_step import LocalStep
from fedjax_pfl.utils.errors import warn
from fedjax_pfl.utils.typing import Tree


def step_flops(federation: Federation) -> float | None:
    """Count the FLOPs of one local step of one client: gradient of a full minibatch, and update.

    Every addition, multiplication and the like counts as one. The federation's extra loss is
    included; an algorithm's additions to its steps are not.

    Returns:
      None where the length of a loop of the step is known only when it runs; and, with a warning,
      if this version of JAX does not report it.
    """
    return _of_federation(step, federation)


def forward_flops(federation: Federation) -> float | None:
    """Count the FLOPs of predicting one sample; None as in `step_flops`."""
    return _of_federation(_forward, federation)


def step(federation, state, batch, key, client):
    """Return the state after a local step of one client."""
    stepped = LocalStep(federation, federation.training.learning_rate)
    return stepped(state, batch, key, None, client)


def _forward(federation, state, batch, key, client):
    return federation.task.predict(state.model, batch.inputs[:1])


def _of_federation(fn: Callable[..., Any], federation: Federation) -> float | None:
    leaves, structure = jax.tree.flatten(one_client(federation))
    try:
        counted = _counted(fn, structure, tuple(leaves))
    except Exception as error:
        warn(
            f"FLOPs can't be counted with JAX {jax.__version__} ({type(error).__name__}: {error})."
        )
        return None
    return None if math.isnan(counted) else counted


def one_client(federation: Federation) -> Federation:
    """Return shapes that determine a step's cost, equal for federations of equal cost."""

    def one(leaf):
        return jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype)

    shapes = jax.eval_shape(lambda given: given.with_backbone(jax.random.key(0)), federation)
    data, size = shapes.data, federation.schedule.fitting(federation.data.train.capacity).batch_size
    walked = replace(jax.tree.map(one, data.train), capacity=size, total=size, equal=True)
    data = replace(
        data,
        drift=None,
        **dict.fromkeys(SPLITS, walked),
        **{name: jax.tree.map(one, getattr(data, name)) for name in
           ("samples", "labels", "class_counts", "ids", "label_map", "turns")},
    )  # fmt: skip
    one_step = replace(
        shapes.training, local_epochs=1, local_steps=None, batch_size=size, drop_last=False,
        batch_order="shuffled", augment=None,
    )  # fmt: skip
    privacy = shapes.sample_privacy
    privacy = None if privacy is None else replace(privacy, noise=privacy.clip)  # one for all
    return replace(
        shapes, sample_privacy=privacy, data=data, training=one_step, participation=None,
        execution=None, eval_batch_size=size,
    )  # fmt: skip


def step_operands(federation: Federation) -> tuple[Any, ...]:
    """Return further arguments of `step`: (state, batch, key, client)."""
    data, zero = federation.data, jnp.int32(0)
    at = jnp.zeros((federation.schedule.batch_size,), jnp.int32)
    batch = data.fetch(data.train, 0, at, at == 0, federation.task.dtype)
    client = Client(
        zero, zero, zero, data.class_counts[0], zero, zero, operand=None, batch_size=zero
    )
    key = jax.random.key(0)
    begun = LocalStep(federation, federation.training.learning_rate).begin(
        federation.initial_model(key)
    )
    return begun, batch, key, client


@lru_cache(maxsize=64)  # tracing takes about as long as a round of a small run
def _counted(fn: Callable[..., Any], structure, leaves: tuple[jax.ShapeDtypeStruct, ...]) -> float:
    federation = jax.tree.unflatten(structure, leaves)
    return flops(fn, federation, *jax.eval_shape(step_operands, federation))


def flops(fn: Callable[..., Any], *args: Tree) -> float:
    """Count the FLOPs of `fn(*args)` by XLA's cost analysis, including loops; only lowered.

    XLA counts the body of a loop once: those of a `scan` are counted apart, and multiplied.

    Args:
      fn: traceable.
      *args: arrays or their shapes.

    Returns:
      NaN where `fn` has a `while` loop.
    """
    return _analysed(fn, args)[1]


def _analysed(fn: Callable[..., Any], args: tuple[Tree, ...]) -> tuple[float, float]:
    """Return XLA's count of FLOPs, with each loop's body counted once and in every iteration."""
    with by_definition():  # the network's function, not its fast form
        traced = jax.jit(fn).trace(*args)
    once = total = (traced.lower().cost_analysis() or {}).get("flops", math.nan)
    for equation in _loops(traced.jaxpr.jaxpr):
        if equation.primitive.name != "scan":
            return once, math.nan
        length, unroll = equation.params["length"], equation.params["unroll"]
        written = length if length <= unroll else unroll + length % unroll  # copies of its body
        body = equation.params["jaxpr"]
        shapes = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in body.in_avals)
        part, whole = _analysed(core.jaxpr_as_fun(body), shapes)
        total += length * whole - written * part
    return once, total


def _loops(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """Return the outermost loops."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("scan", "while"):
            yield equation
            continue
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from _loops(getattr(value, "jaxpr", value))


def _is_jaxpr(value) -> bool:
    # In newer versions of JAX both names are the same class.
    return isinstance(
        value,
        (core.Jaxpr, core.ClosedJaxpr),  # pyright: ignore[reportPrivateImportUsage]
    )
