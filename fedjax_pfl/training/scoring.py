"""Scores of models on clients' samples: one model each, or several candidates."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.aggregation import streamed
from fedjax_pfl.data.federated import FederatedData, Split
from fedjax_pfl.execution.packed_vmap import Loop, run_loops
from fedjax_pfl.execution.rows import over_rows, row_devices_of
from fedjax_pfl.federation.batching import COUNT_LIMIT
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.models.metrics import Metric
from fedjax_pfl.models.task import Task
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Rows, Stack, Tree


class _Common(NamedTuple):
    """Operands shared by all clients: models, the data, and the split in use."""

    models: Tree
    data: FederatedData
    part: Split


class _Lane(NamedTuple):
    """A client's row, its model (None: the common one) and number of samples (None: all)."""

    row: Rows
    model: Tree = None
    size: jax.Array | None = None


class Scores(NamedTuple):
    """Scores of each client's model on its own samples.

    Attributes:
      sums: of the task's sample statistics, [k] or [k, m]; a classifier's correct predictions,
        int32.
      loss: summed loss, [k].
      metrics: further metrics by name, [k] each; NaN where undefined.
    """

    sums: jax.Array
    loss: jax.Array
    metrics: dict[str, jax.Array]


def score(
    federation: Federation,
    models: Tree | Broadcast,
    rows: Rows,
    split: str | Split,
    metrics: tuple[Metric, ...] = (),
    changes: Callable[[jax.Array], jax.Array] | None = None,
) -> Scores:
    """Score each client's model on its own samples.

    Args:
      federation: the clients.
      models: [k, ...] for the clients `rows`, or one `Broadcast` model.
      rows: int32 [k].
      split: "train", "validation" or "test", or a `Split`, such as a window of one.
      metrics: further metrics, functions of all outputs of a client.
      changes: changes the samples [B, ...] before they are scaled, see `Metric`.
    """
    part = federation.data.split(split)
    alike = isinstance(models, Broadcast)
    operands, model = (_Lane(rows), models.model) if alike else (_Lane(rows, models), None)
    lengths = None if part.equal else part.size[rows]
    common = _Common(model, federation.data, part)
    loop = partial(
        _scoring, federation.task, federation.eval_batch_size, metrics=metrics, changes=changes
    )
    row_devices = row_devices_of(federation.data, rows)
    return run_loops(loop, operands, common, federation.execution, lengths, row_devices)


def _scoring(
    task: Task,
    batch_size: int,
    common: _Common,
    metrics: tuple[Metric, ...] = (),
    changes: Callable[[jax.Array], jax.Array] | None = None,
) -> Loop:
    """Return the loop over a client's batches."""
    data, part = common.data, common.part
    batch_size = min(batch_size, part.capacity)
    zero = jnp.zeros((), jnp.promote_types(task.dtype, jnp.float32))
    most = -(-part.capacity // batch_size)

    def size_of(lane: _Lane):
        if lane.size is not None:
            return lane.size
        return part.size[0] if part.equal else part.size[lane.row]

    def predicted(lane, common, at):
        row, model, size = lane.row, lane.model, size_of(lane)
        batch = data.fetch(part, row, at, at < size, task.dtype, changes)
        return task.predict(common.models if model is None else model, batch.inputs), batch

    def summed(logits, batch):
        statistics = task.objective.sample_statistics(logits, batch.labels)
        if not task.objective.num_statistics:
            return jnp.sum(statistics & batch.valid, dtype=jnp.int32)
        return jnp.sum(jnp.where(batch.valid[:, None], statistics, 0), axis=0).astype(zero.dtype)

    def begin(lane, common):
        width = task.objective.num_statistics
        sums = jnp.zeros(width, zero.dtype) if width else jnp.int32(0)
        if not metrics:
            return jnp.int32(0), sums, zero, None
        at = jnp.arange(batch_size, dtype=jnp.int32)
        logits, _ = jax.eval_shape(lambda: predicted(lane, common, at))
        outputs = jnp.zeros((most * batch_size, *logits.shape[1:]), logits.dtype)
        return jnp.int32(0), sums, zero, outputs

    def unfinished(lane, state):
        return state[0] < size_of(lane)

    def step(lane, common, state):
        start, sums, loss, outputs = state
        at = start + jnp.arange(batch_size, dtype=jnp.int32)
        logits, batch = predicted(lane, common, at)
        losses = jnp.where(batch.valid, task.losses(logits, batch.labels), 0)
        if outputs is not None:
            outputs = lax.dynamic_update_slice_in_dim(outputs, logits, start, 0)
        return (
            start + batch_size,
            sums + summed(logits, batch),
            loss + jnp.sum(losses).astype(loss.dtype),
            outputs,
        )

    def finish(lane, common, state):
        _, sums, loss, outputs = state
        if outputs is None:
            return Scores(sums, loss, {})
        everything = jnp.arange(most * batch_size, dtype=jnp.int32)
        valid = everything < size_of(lane)
        batch = data.fetch(part, lane.row, everything, valid, task.dtype)
        measured = {
            one.name: jnp.asarray(one.fn(outputs, batch.labels, valid), zero.dtype)
            for one in metrics
            if one.fn is not None
        }
        return Scores(sums, loss, measured)

    return Loop(
        begin=begin,
        enter=lambda lane, state: state,
        inside=unfinished,
        unfinished=unfinished,
        step=step,
        finish=finish,
        unit="batches",
    )


def loss_matrix(
    federation: Federation,
    candidates: Tree,
    rows: Rows,
    split: str | Split = "validation",
    choice: jax.Array | None = None,
    active: jax.Array | None = None,
    onto: Stack | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute the mean loss of candidate models on each client's samples.

    Args:
      federation: the clients.
      candidates: stack of models [Q, ...].
      rows: int32 [M], the clients whose samples are used.
      split: "train", "validation" or "test", or a `Split`, such as a window of one.
      choice: int32 [M, K], which candidates each client scores; all of them by default (K = Q).
      active: bool [M], clients that score candidates; all by default.
      onto: models [M, ...] of the clients, whose private leaves replace the candidates', as in
        mixing.

    Returns:
      (losses [M, K], means over a client's samples; 0 for inactive clients and without samples.
      Forward passes of single samples of each client, int32 [M].)

    Raises:
      InputError: too many forward passes to count.
    """
    part = federation.data.split(split)
    count = jax.tree.leaves(candidates)[0].shape[0]
    if choice is None:
        choice = jnp.broadcast_to(jnp.arange(count), (rows.shape[0], count))
    most, allowed = choice.shape[1] * part.capacity, f"below {COUNT_LIMIT:,}"
    require(most < COUNT_LIMIT, "a client's samples times candidates", most, allowed)
    sizes = part.size[rows]
    sizes = sizes if active is None else jnp.where(active, sizes, 0)

    if streamed.is_offloaded(candidates):  # a candidate of each client at a time
        itself = jnp.arange(len(rows), dtype=jnp.int32)[:, None]

        def one_each(chosen):
            some = trees.take(candidates, chosen)
            losses, _ = loss_matrix(federation, some, rows, split, itself, active, onto)
            return losses[:, 0]

        return lax.map(one_each, choice.T).T, _passes(sizes, choice)

    private = None
    if onto is not None:
        trees.check_rows("models with the clients' private leaves", onto, rows.shape[0])
        (candidates, _), (_, private) = map(federation.plan.split, (candidates, onto))

    def of_client(operand, common: _Common):
        row, chosen, size, private = operand
        scoring = _scoring(federation.task, federation.eval_batch_size, common)

        def one(candidate):
            model = trees.row(common.models, candidate)
            model = model if private is None else trees.join(model, private)
            loss = scoring.run_row(_Lane(row, model, size), common).loss
            return loss / jnp.maximum(common.part.size[row], 1)

        return lax.map(one, chosen)

    operands = (rows, choice, None if active is None else sizes, private)
    common = _Common(candidates, federation.data, part)
    row_devices = row_devices_of(federation.data, rows)
    losses = over_rows(of_client, operands, common, federation.execution, sizes, row_devices)
    return losses, _passes(sizes, choice)


def _passes(sizes: jax.Array, choice: jax.Array) -> jax.Array:
    return (sizes * choice.shape[1]).astype(jnp.int32)
