"""Gradients of embedding tables by the rows of a minibatch, instead of as whole tables.

A gradient of a table is zero but for the rows that the minibatch looks up. `lookups` replaces the
`Embedding` layers of a linen network while it is traced: their outputs get a zero added to them, by
which the loss is differentiated.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import traverse_util

from fedjax_pfl.models.layers import Embedding
from fedjax_pfl.utils.typing import Tree

Tables = dict[tuple[str, ...], jax.Array]  # by the path of their layer
LEAF = "table"


@contextmanager
def lookups(tables: Tables, added: Tables | None, ids: Tables) -> Iterator[None]:
    """Context manager in which `Embedding` layers look up given tables.

    Args:
      tables: the tables; other layers are as they are.
      added: what is added to the outputs, [B, T, features]; None for nothing.
      ids: filled with the token ids of each layer, [B, T].

    Raises:
      LookupError: a layer is called twice.
    """

    def looked_up(call: Callable[..., Any], args, kwargs, context) -> Any:
        module = context.module
        if not isinstance(module, Embedding) or module.path not in tables:
            return call(*args, **kwargs)
        if module.path in ids:
            raise LookupError(f"{module.path} is called twice.")
        tokens = ids[module.path] = args[0] if args else kwargs["ids"]
        rows = jnp.take(tables[module.path], tokens, axis=0, mode="clip")
        out = jnp.where(tokens[..., None] == 0, 0, rows)
        out = out if added is None else out + added[module.path]
        return out.astype(module.get_variable("params", LEAF).dtype)

    with nn.intercept_methods(looked_up):
        yield


def tables_of(params: Tree) -> Tables:
    """Return the leaves that may be tables of `Embedding` layers."""
    leaves: Any = traverse_util.flatten_dict(params) if isinstance(params, dict) else {}
    return {path[:-1]: x for path, x in leaves.items() if path[-1] == LEAF and jnp.ndim(x) == 2}


def replaced(params: Tree, tables: Tables) -> Tree:
    """Return the parameters with other tables."""
    leaves = traverse_util.flatten_dict(params, keep_empty_nodes=True)
    changed = {(*path, LEAF): table for path, table in tables.items()}
    return traverse_util.unflatten_dict(leaves | changed)


def sparse_tables(loss: Callable[[Tree], Any], params: Tree) -> Tables:
    """Return the tables whose gradient is best computed by rows, and zeros for their outputs.

    Args:
      loss: a function of the parameters, traced for its shapes only.
      params: of a linen network.

    Returns:
      Zeros [B, T, features] by layer, of tables that the loss only looks up once, in fewer rows
      than half of theirs; {} if there are none.
    """
    tables, ids = tables_of(params), {}
    if not tables:
        return {}
    try:
        with lookups(tables, None, ids):
            jax.eval_shape(loss, params)
        rows = {path: tokens.size for path, tokens in ids.items()}
        chosen = {path: x for path, x in tables.items() if 0 < 2 * rows.get(path, 0) < len(x)}
        shapes = {path: (*ids[path].shape, x.shape[1]) for path, x in chosen.items()}
        if not chosen:
            return {}

        def without(tables):
            with lookups(chosen, None, {}):
                return loss(replaced(params, tables))

        # Refused by vmap if the loss depends on the tables otherwise, as with tied embeddings.
        stack = {path: jax.ShapeDtypeStruct((2, *x.shape), x.dtype) for path, x in chosen.items()}
        jax.eval_shape(jax.vmap(without, out_axes=None), stack)
    except (LookupError, ValueError):
        return {}
    return {path: jnp.zeros(shape, tables[path].dtype) for path, shape in shapes.items()}
