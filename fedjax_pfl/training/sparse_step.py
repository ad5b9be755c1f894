"""SGD steps that change only the looked-up rows of embedding tables."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.models.sparse_embeddings import Tables, lookups, replaced, sparse_tables, tables_of
from fedjax_pfl.models.task import Task
from fedjax_pfl.utils.typing import Key, Model, Scalar, Tree


def sparse_step(
    task: Task,
    optimizer: optax.GradientTransformation,
    model: Model,
    memory: Tree,
    batch: Batch,
    rng: Key,
) -> tuple[Model, Tree, Scalar] | None:
    """Take a step of plain SGD that changes only the looked-up rows of embedding tables.

    Results are those of the dense step up to rounding.

    Args:
      task: the network and its loss.
      optimizer: plain SGD, whose updates of a row depend only on the row's gradient.
      model: one client's model.
      memory: the optimizer's state.
      batch: the minibatch.
      rng: the step's key.

    Returns:
      (model, optimizer state, loss of the minibatch); None if no table can be updated by rows.
    """
    params = model["params"]

    def forward(params):
        loss, after, _ = task.forward({**model, "params": params}, batch, rng)
        return loss, after

    zeros = sparse_tables(lambda params: forward(params)[0], params)
    if not zeros:
        return None
    tables = {path: tables_of(params)[path] for path in zeros}
    none = dict.fromkeys(tables, jnp.zeros(()))

    def total(rest, added):
        ids: Tables = {}
        with lookups(tables, added, ids):
            loss, after = forward(replaced(rest, tables))
        return loss, (loss, after, ids)

    rest = replaced(params, none)  # not differentiated by the tables
    slopes, (loss, after, ids) = jax.grad(total, (0, 1), has_aux=True)(rest, zeros)
    gradient, of_rows = slopes
    updates, new_memory = optimizer.update(gradient, memory, rest)
    moved: Tree = optax.apply_updates(rest, updates)
    steps: Any = optimizer.update(of_rows, memory, of_rows)[0]
    changed = {
        path: table.at[ids[path]].add(
            jnp.where(ids[path][..., None] == 0, 0, steps[path]).astype(table.dtype), mode="clip"
        )
        for path, table in tables.items()
    }
    return {**model, **after, "params": replaced(moved, changed)}, new_memory, loss
