"""Scores of models on their clients' samples, optionally after local adaptation.

Every score names its model (personalized, global, ...), its split and its measure, and is kept for
every client; the result averages over clients.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl.core import traced_checks
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.results.model_names import ADAPTED, PERSONALIZED, PREVIOUS, TRAINED
from fedjax_pfl.training.scoring import score
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import PerClient, Rows, Stack, State


def named_models(
    algorithm: Algorithm, ctx: Context, state: State, rows: Rows
) -> dict[str, Stack | Broadcast]:
    """Return the checked result of `algorithm.models(ctx, state, rows)`.

    Per-client leaves of the state may hold those rows only (`traced_checks.with_partial_rows`).

    Raises:
      RowsNotOnDevice: the models need other rows of these.
      InputError: see `traced_checks.while_traced`.
      TypeError: "personalized" is missing, or a stack does not match the clients `rows`.
      UncountedRelease: see `traced_checks.outside_rounds`.
    """
    state = traced_checks.with_partial_rows(state, rows, ctx.num_clients, ctx.reader)
    outside = traced_checks.outside_rounds(algorithm, ctx, "models")
    with traced_checks.while_traced(algorithm, "models"):
        named = algorithm.models(outside, state, rows)
    if not isinstance(named, Mapping) or "personalized" not in named:
        actual = list(named) if isinstance(named, Mapping) else type(named).__name__
        raise TypeError(f"{algorithm.name}.models must name 'personalized', got {actual}.")
    hint = "Give those of `rows`, trees.take(stack, rows), or one model for all, Broadcast(model)."
    for name, models in named.items():
        if not isinstance(models, Broadcast):
            trees.check_rows(f"{algorithm.name}.models: {name}", models, len(rows), hint)
    return named


def evaluate(
    algorithm: Algorithm,
    ctx: Context,
    state: State,
    adapt: Adaptation | None = None,
    rows: Sequence[int] | None = None,
) -> dict[str, PerClient]:
    """Score every model that an algorithm names, for the clients `rows` (default: all).

    The algorithm returns the models of `Execution.width` clients at a time. If these are all
    clients, it gets their rows as a NumPy array.

    Returns:
      "MODEL/SPLIT/MEASURE", such as "personalized/test/accuracy", and "MODEL/SPLIT/loss", [N] each;
      {} if `rows` is empty. A score is NaN where the client is not in `rows`, has no samples or no
      finite model, is not served by the algorithm, or has not arrived or has left. Under concept
      drift the split "previous" has the test samples of the client's previous concept; NaN in its
      first concept.
    """
    if rows is not None and len(rows) == 0:
        return {}
    federation = ctx.federation
    dtype = jnp.promote_types(federation.task.dtype, jnp.float32)

    def chunk(rows: Rows) -> dict[str, jax.Array]:
        return score_rows(algorithm, ctx, state, adapt, rows)

    everyone = np.arange(federation.num_clients, dtype=np.int32)
    wanted = everyone if rows is None else np.asarray(rows, np.int32)
    count = len(wanted)
    width = federation.execution.width(count, federation.participation.cohort_size)
    if width == count:
        scores = chunk(wanted)  # a NumPy array: `trees.take` of all clients copies nothing
    else:  # the last chunk is filled up with copies of its last client
        padded = wanted[np.minimum(np.arange(-(-count // width) * width), count - 1)]
        scores = lax.map(chunk, jnp.asarray(padded).reshape(-1, width))
        scores = {name: value.reshape(-1)[:count] for name, value in scores.items()}
    if rows is None:
        return scores
    nobody = jnp.full(everyone.shape, jnp.nan, dtype)
    return {name: nobody.at[wanted].set(value) for name, value in scores.items()}


def score_rows(
    algorithm: Algorithm, ctx: Context, state: State, adapt: Adaptation | None, rows: Rows
) -> dict[str, jax.Array]:
    """Return the scores [k] of the clients `rows` [k]; see `evaluate`."""
    ctx = traced_checks.with_base(algorithm, ctx, state)
    federation = ctx.federation
    splits = {
        name: federation for name in ("test", "validation") if federation.data.split(name).total
    }
    drift = federation.data.drift
    if drift is not None and "test" in splits:
        splits[PREVIOUS] = replace(federation, data=federation.data.before_drift(ctx.t))
    dtype = jnp.promote_types(federation.task.dtype, jnp.float32)
    metrics = tuple(one for one in federation.metrics if one.fn is not None)
    plain = tuple(one for one in metrics if one.changes is None)
    last = ctx.t + 1 == ctx.num_rounds
    served = algorithm.served_clients(ctx)
    here = federation.participation.present(ctx.t)
    served_here = trees.take(served if here is None else served & here, rows)
    named = named_models(algorithm, ctx, state, rows)
    late = set()
    copies = TRAINED if adapt is not None and adapt.as_in_a_round else ADAPTED
    adaptations = ((PERSONALIZED, algorithm.adaptation()), (copies, adapt))
    for number, (name, how) in enumerate(adaptations):
        if how is not None:
            due = partial(ctx.adapt, named["personalized"], rows, how, number)
            named = {**named, name: _adapted(due, how, last)}
            # What is adapted from a model of the last round only is of the last round only, too.
            late |= {name} if how.when == "last" or late else set()
    scores, seen = {}, {}
    for name, models in named.items():
        for split, seen_by in splits.items():
            of = "test" if split == PREVIOUS else split
            size = trees.take(federation.data.split(of).size, rows)
            twin = (id(models), split)  # a model with two names is scored once
            if twin not in seen:
                sums, loss, more = score(seen_by, models, rows, of, plain)
                for one in metrics:
                    if one.changes is not None:
                        changed = score(seen_by, models, rows, of, (one,), one.changes)
                        more = more | changed.metrics
                seen[twin] = sums, loss, more
            sums, loss, more = seen[twin]
            known = (size > 0) & served_here & (last if name in late else True)
            if drift is not None and split == PREVIOUS:
                known &= drift.phase(ctx.t)[rows] > 0
            known &= _finite(models, len(rows))  # otherwise logits of NaN would predict class 0
            count = jnp.maximum(size, 1)
            values = federation.task.objective.values(sums.astype(dtype), count) | more
            for one in federation.measures:
                scores[f"{name}/{split}/{one.name}"] = jnp.where(known, values[one.name], jnp.nan)
            scores[f"{name}/{split}/loss"] = jnp.where(known, loss / count, jnp.nan)
    return scores


def _finite(models: Stack | Broadcast, count: int) -> jax.Array:
    """Return which models are finite, bool [count] or []."""
    if isinstance(models, Broadcast):
        return trees.is_finite(models.model)
    return trees.rows_finite(models, count)


def _adapted(due: Callable[[], Stack], how: Adaptation, last) -> Stack:
    """Return adapted models, or zeros in rounds without adaptation."""
    if how.when == "every":
        return due()
    shapes = jax.eval_shape(due)
    return lax.cond(
        last,
        due,
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes),
    )
