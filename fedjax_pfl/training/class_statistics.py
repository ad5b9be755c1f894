"""Sums of features over each client's training samples, by class."""

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregation import products
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.training.client_loop import run_clients
from fedjax_pfl.utils.structs import Broadcast, struct
from fedjax_pfl.utils.typing import Key, Stack

Moments: TypeAlias = Literal["none", "trace", "scatter", "pooled"]


@struct
class ClassSums:
    """Sums of features z over samples, by class.

    Attributes:
      totals: [..., C, d], sums of z.
      counts: int32 [..., C], numbers of samples.
      second: sums of |z|^2, [..., C] ("trace"); of z z^T, [..., C, d, d] ("scatter"), or
        [..., d, d] over all classes ("pooled"); None without second moments.
    """

    totals: jax.Array
    counts: jax.Array
    second: jax.Array | None = None

    @classmethod
    def zeros(
        cls, num_classes: int, width: int, dtype: Any, second: Moments = "none"
    ) -> "ClassSums":
        """Return sums over no samples, at least in single precision."""
        dtype = jnp.promote_types(dtype, jnp.float32)
        shapes = {
            "trace": (num_classes,),
            "scatter": (num_classes, width, width),
            "pooled": (width, width),
        }
        return cls(
            jnp.zeros((num_classes, width), dtype),
            jnp.zeros((num_classes,), jnp.int32),
            None if second == "none" else jnp.zeros(shapes[second], dtype),
        )

    @classmethod
    def of(
        cls, batch: Batch, features: jax.Array, num_classes: int, second: Moments = "none"
    ) -> "ClassSums":
        """Return the sums over a minibatch's valid samples, whose features are [B, d]."""
        member = (batch.labels == jnp.arange(num_classes)[:, None]) & batch.valid  # [C, B]
        wide = jnp.promote_types(features.dtype, jnp.float32)
        z = jnp.where(batch.valid[:, None], features, 0).astype(wide)
        of_class = member.astype(wide)
        moments = None
        if second == "trace":
            moments = products.matmul(of_class, jnp.sum(jnp.square(z), axis=1))
        elif second == "scatter":
            moments = products.matmul(of_class[:, None] * z.T, z)
        elif second == "pooled":
            moments = products.matmul(z.T, z)
        counts = jnp.sum(member, axis=1, dtype=jnp.int32)
        return cls(products.matmul(of_class, z), counts, moments)

    def __add__(self, other: "ClassSums") -> "ClassSums":
        return jax.tree.map(jnp.add, self, other)

    @property
    def means(self) -> jax.Array:
        """Mean features of each class, [..., C, d]; 0 without samples."""
        return self.totals / jnp.maximum(self.counts, 1)[..., None]


def class_sums(
    federation: Federation,
    models: Stack | Broadcast,
    cohort: Cohort,
    *,
    key: Key,
    second: Moments = "none",
) -> tuple[ClassSums, Cohort]:
    """Sum the features of each member's training samples by class, in evaluation mode.

    Samples are not augmented, and each counts once.

    Args:
      federation: the clients.
      models: [M, ...], or one `Broadcast` model.
      cohort: the members; others have sums of 0.
      key: the round's key for this purpose.
      second: the second moments, see `ClassSums`.

    Returns:
      (sums [M, ...], the cohort without members whose sums are not finite).
    """
    federation = federation.replace_training(augment=None)
    count, width = federation.data.num_classes, federation.num_features
    together = isinstance(models, Broadcast)

    def see(sums, batch, rng, broadcast, client):
        model = broadcast if together else client.operand
        features = federation.task.features(model, batch.inputs)
        return sums + ClassSums.of(batch, features, count, second)

    sums, finite, _ = run_clients(
        federation,
        see,
        Broadcast(ClassSums.zeros(count, width, federation.task.dtype, second)),
        rows=cohort.maybe_static_rows,
        key=key,
        schedule=federation.schedule.one_pass(),
        broadcast=models.model if together else None,
        operands=None if together else models,
        active=None if cohort.complete else cohort.mask,
    )
    return sums, cohort.mark_diverged(finite)
