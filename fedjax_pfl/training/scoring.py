"""Scores of models on their clients' samples: one stack, or candidates for each client."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import trees
from fedjax_pfl.aggregation import leaf_plan
from fedjax_pfl.data.federated import Split
from fedjax_pfl.errors import require
from fedjax_pfl.execution.lanes import Counts, Loop, run_loops
from fedjax_pfl.execution.rows import over_rows
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.schedules import COUNTED
from fedjax_pfl.structs import Broadcast
from fedjax_pfl.typing import Rows, Stack, Tree


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
    operands, common = (_Scored(rows), models.model) if alike else (_Scored(rows, models), None)
    lengths = None if part.equal else part.size[rows]
    return run_loops(_scoring(federation, part), operands, common, federation.execution, lengths)


def _scoring(federation: Federation, part: Split) -> Loop:
    """Batch by batch over a client's samples."""
    batch_size = min(federation.eval_batch_size, part.capacity)
    task = federation.task
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
        batch = federation.data.fetch(part, row, at, at < size, task.dtype)
        logits = task.predict(common if model is None else model, batch.inputs)
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
    scoring = _scoring(federation, part)
    sizes = part.size[rows]
    sizes = sizes if active is None else jnp.where(active, sizes, 0)

    private = None
    if onto is not None:
        trees.check_rows("models with the clients' private leaves", onto, rows.shape[0])
        (candidates, _), (_, private) = map(federation.plan.split, (candidates, onto))

    def lane(operand, candidates):
        row, chosen, size, private = operand

        def one(candidate):
            model = trees.row(candidates, candidate)
            model = model if private is None else leaf_plan.join(model, private)
            _, loss = scoring.alone(_Scored(row, model, size), None)
            return loss / jnp.maximum(part.size[row], 1)

        return lax.map(one, chosen)

    operands = (rows, choice, None if active is None else sizes, private)
    losses = over_rows(lane, operands, candidates, federation.execution, sizes)
    return LossMatrix(losses, (sizes * choice.shape[1]).astype(jnp.int32))
