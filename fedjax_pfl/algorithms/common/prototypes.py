"""Class prototypes (mean features) and the nearest-prototype head."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.aggregation import products


@core.struct
class Prototypes:
    """A vector for each class.

    Attributes:
      means: [C, d], mean features.
      exist: bool [C], the classes that have a prototype.
    """

    means: jax.Array
    exist: jax.Array


@core.struct
class Sums:
    """Sums of features per class.

    Attributes:
      totals: [..., C, d].
      counts: int32 [..., C], samples.
    """

    totals: jax.Array
    counts: jax.Array

    @property
    def means(self) -> jax.Array:
        return self.totals / jnp.maximum(self.counts, 1)[..., None]


def class_sums(batch, features: jax.Array, num_classes: int) -> Sums:
    """Return the sums over a minibatch's valid samples, whose features are [B, d]."""
    member = (batch.labels == jnp.arange(num_classes)[:, None]) & batch.valid  # [C, B]
    features = jnp.where(batch.valid[:, None], features, 0).astype(wide(features))
    totals = products.matmul(member.astype(features.dtype), features)
    return Sums(totals, jnp.sum(member, axis=1, dtype=jnp.int32))


def nothing(prototypes: Prototypes) -> Sums:
    """Return the sums over no sample."""
    means, exist = prototypes.means, prototypes.exist
    return Sums(jnp.zeros(means.shape, wide(means)), jnp.zeros(exist.shape, jnp.int32))


def wide(leaf: jax.Array) -> jnp.dtype:
    """Return the dtype for sums of numbers of a leaf's dtype."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def nearest(means: jax.Array, eligible: jax.Array, own: dict) -> dict:
    """Return the linear head whose largest logit is that of the nearest eligible prototype.

    Up to terms that all classes share, |z - P_c|^2 = |Q_c|^2 + 2 m Q_c - 2 z Q_c, Q_c = P_c - m;
    m, the mean prototype, keeps the numbers small. Without an eligible class the result is the
    client's `own` head.
    """
    used = eligible[:, None]
    middle = jnp.sum(jnp.where(used, means, 0), axis=0) / jnp.maximum(jnp.sum(eligible), 1)
    apart = jnp.where(used, means - middle, 0)
    bias = -jnp.sum(apart * (apart + 2 * middle), axis=1)
    found = {"kernel": 2 * apart.T, "bias": jnp.where(eligible, bias, -1e9)}
    return jax.tree.map(lambda a, b: jnp.where(jnp.any(eligible), a, b), found, dict(own))
