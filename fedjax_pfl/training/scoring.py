"""Scores of models on their clients' samples: one stack, or candidates for each client."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import trees
from fedjax_pfl.aggregation import leaf_plan
from fedjax_pfl.data.federated import FederatedData, Split
from fedjax_pfl.errors import require
from fedjax_pfl.execution.lanes import Counts, Loop, run_loops
from fedjax_pfl.execution.rows import homes_of, over_rows
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.schedules import COUNTED
from fedjax_pfl.models.task import Task
from fedjax_pfl.structs import Broadcast
from fedjax_pfl.typing import Rows, Stack, Tree


class _Common(NamedTuple):
    """Shared by all clients: models, the data and their split whose samples are used."""

    models: Tree
    data: FederatedData
    part: Split


class _Scored(NamedTuple):
    """One client: its row, its model, or None for the broadcast one, and how many of its samples,
    or None for all."""

    row: Rows
    model: Tree = None
    size: jax.Array | None = None


def score(
    federation: Federation, models: Tree | Broadcast, rows: Rows, split: str | Split
) -> tuple[jax.Array, jax.Array]:
    """Correct predictions and summed cross-entropy of each client's model on its own samples.

    Args:
      models: [k, ...] for the clients `rows`, or one `Broadcast` model.
      rows: int32 [k].
      split: "train", "validation" or "test", or a `Split`, such as a window of one.

    Returns:
      (correct int32 [k], loss [k]).
    """
    part = federation.data.split(split)
    alike = isinstance(models, Broadcast)
    operands, model = (_Scored(rows), models.model) if alike else (_Scored(rows, models), None)
    lengths = None if part.equal else part.size[rows]
    common = _Common(model, federation.data, part)
    loop = partial(_scoring, federation.task, federation.eval_batch_size)
    homes = homes_of(federation.data, rows)
    return run_loops(loop, operands, common, federation.execution, lengths, homes)


def _scoring(task: Task, batch_size: int, common: _Common) -> Loop:
    """Batch by batch over a client's samples."""
    data, part = common.data, common.part
    batch_size = min(batch_size, part.capacity)
    zero = jnp.zeros((), jnp.promote_types(task.dtype, jnp.float32))
    most, mean = (-(-size // batch_size) for size in (part.capacity, part.mean_size))

    def size_of(scored: _Scored):
        if scored.size is not None:
            return scored.size
        return part.size[0] if part.equal else part.size[scored.row]

    def unfinished(scored, state):
        return state[0] < size_of(scored)

    def step(scored, common, state):
        row, model, size = scored.row, scored.model, size_of(scored)
        start, correct, loss = state
        at = start + jnp.arange(batch_size, dtype=jnp.int32)
        batch = data.fetch(part, row, at, at < size, task.dtype)
        logits = task.predict(common.models if model is None else model, batch.inputs)
        right = (jnp.argmax(logits, axis=1) == batch.labels) & batch.valid
        losses = jnp.where(batch.valid, task.losses(logits, batch.labels), 0)
        return (
            start + batch_size,
            correct + jnp.sum(right, dtype=jnp.int32),
            loss + jnp.sum(losses).astype(loss.dtype),
        )

    return Loop(
        begin=lambda scored, common: (jnp.int32(0), jnp.int32(0), zero),
        enter=lambda scored, state: state,
        inside=unfinished,
        unfinished=unfinished,
        step=step,
        finish=lambda scored, common, state: state[1:],
        counts=Counts(1, most, mean, "batches"),  # a plan counts no local step here
    )


class LossMatrix(NamedTuple):
    """Losses of candidates, and their number of forward passes.

    Attributes:
      losses: [M, K], mean over a client's samples; 0 for a client without samples, or inactive.
      samples: int32 [M], forward passes of one sample that each client took.
    """

    losses: jax.Array
    samples: jax.Array


def loss_matrix(
    federation: Federation,
    candidates: Tree,
    rows: Rows,
    split: str | Split = "validation",
    choice: jax.Array | None = None,
    active: jax.Array | None = None,
    onto: Stack | None = None,
) -> LossMatrix:
    """Mean loss of candidate models on each client's samples.

    Args:
      candidates: stack of models [Q, ...].
      rows: int32 [M], the clients whose samples are used.
      split: "train", "validation" or "test", or a `Split`, such as a window of one.
      choice: int32 [M, K], which candidates each client scores; all of them by default (K = Q).
      active: bool [M]; the others score nothing. All by default.
      onto: models [M, ...] of the clients, whose private leaves take the place of the candidates',
        as in mixing.

    Raises:
      InputError: too many forward passes to count.
    """
    part = federation.data.split(split)
    count = jax.tree.leaves(candidates)[0].shape[0]
    if choice is None:
        choice = jnp.broadcast_to(jnp.arange(count), (rows.shape[0], count))
    most, allowed = choice.shape[1] * part.capacity, f"below {COUNTED:,}"
    require(most < COUNTED, "a client's samples times candidates", most, allowed)
    sizes = part.size[rows]
    sizes = sizes if active is None else jnp.where(active, sizes, 0)

    private = None
    if onto is not None:
        trees.check_rows("models with the clients' private leaves", onto, rows.shape[0])
        (candidates, _), (_, private) = map(federation.plan.split, (candidates, onto))

    def lane(operand, common: _Common):
        row, chosen, size, private = operand
        scoring = _scoring(federation.task, federation.eval_batch_size, common)

        def one(candidate):
            model = trees.row(common.models, candidate)
            model = model if private is None else leaf_plan.join(model, private)
            _, loss = scoring.alone(_Scored(row, model, size), common)
            return loss / jnp.maximum(common.part.size[row], 1)

        return lax.map(one, chosen)

    operands = (rows, choice, None if active is None else sizes, private)
    common = _Common(candidates, federation.data, part)
    homes = homes_of(federation.data, rows)
    losses = over_rows(lane, operands, common, federation.execution, sizes, homes)
    return LossMatrix(losses, (sizes * choice.shape[1]).astype(jnp.int32))
