"""Clusters that were split, and the models that they had before."""

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
        """Of clusters without a split; `models` [K, ...] give the shapes."""
        return cls(jnp.zeros((len(jax.tree.leaves(models)[0]),), jnp.int32), models)

    def split(self, target: jax.Array, models: core.Stack) -> "ClusterTree":
        """Further splits, of each cluster into itself and `target` [K]; K where there is none.

        Args:
          models: of all clusters before them, [K, ...].
        """
        numbers = jnp.arange(len(self.parent), dtype=jnp.int32)
        return ClusterTree(
            written(self.parent, target, numbers), written(self.before, target, models)
        )

    def with_latest(self, models: core.Stack) -> core.Stack:
        """[2K, ...]: models before each split, then those that clusters have now."""
        return jax.tree.map(lambda *s: jnp.concatenate(s), self.before, models)

    def path(self, own: jax.Array, count: jax.Array) -> jax.Array:
        """int [M, K]: where `with_latest` has the models of all clusters that clients were in.

        The latest is first, then split by split back to the root; the rest is filled with it.

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
    """The stack [K, ...] with `values` [K, ...] in the rows `target` [K]; none is at K."""
    return jax.tree.map(lambda leaf, v: leaf.at[target].set(v, mode="drop"), stack, values)
