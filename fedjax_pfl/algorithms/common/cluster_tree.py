"""The tree of cluster splits, with the models before each split."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core


@core.struct
class ClusterTree:
    """The splits so far.

    Attributes:
      parent: int32 [K], the cluster from which each was split.
      before: [K, ...], that cluster's model before the split.
    """

    parent: Any
    before: core.Stack

    @classmethod
    def begin(cls, models: core.Stack) -> "ClusterTree":
        """Return the tree before any split; `models` [K, ...] give the shapes."""
        return cls(jnp.zeros((len(jax.tree.leaves(models)[0]),), jnp.int32), models)

    def split(self, target: jax.Array, models: core.Stack) -> "ClusterTree":
        """Add splits of each cluster into itself and `target` [K]; K means no split.

        Args:
          models: of all clusters before them, [K, ...].
        """
        numbers = jnp.arange(len(self.parent), dtype=jnp.int32)
        return ClusterTree(
            written(self.parent, target, numbers), written(self.before, target, models)
        )

    def with_latest(self, models: core.Stack) -> core.Stack:
        """Return the models before each split, then the clusters' models, [2K, ...]."""
        return jax.tree.map(lambda *s: jnp.concatenate(s), self.before, models)

    def path(self, own: jax.Array, count: jax.Array) -> jax.Array:
        """Return the rows of `with_latest` with the models of all clusters of each client, [M, K].

        The latest comes first, then split by split back to the root, which fills the rest.

        Args:
          own: [M], the clusters in which clients are.
          count: [], of clusters in use.
        """
        most = len(self.parent)
        at, path = own, [most + own]
        for k in range(most - 1, 0, -1):  # the newest split first
            at = jnp.where(at == k, self.parent[k], at)
            passed = (k < count) & (self.parent[k] == at)
            path.append(jnp.where(passed, k, most + own))
        return jnp.stack(path, axis=1)


def written(stack: core.Tree, target: jax.Array, values: core.Tree) -> core.Tree:
    """Write `values` [K, ...] to the rows `target` [K] of a stack [K, ...]; row K is none."""
    return jax.tree.map(lambda leaf, v: leaf.at[target].set(v, mode="drop"), stack, values)
