"""Features of each client's training samples."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.training.client_loop import run_clients
from fedjax_pfl.utils.structs import Broadcast, struct
from fedjax_pfl.utils.typing import Key, Stack


@struct
class SampleFeatures:
    """Features of samples, in the order of the client's own list; n is the largest client's size.

    Attributes:
      features: [..., n, d].
      labels: [..., n].
      valid: bool [..., n], which rows are samples; others are 0.
    """

    features: jax.Array
    labels: jax.Array
    valid: jax.Array


def sample_features(
    federation: Federation,
    models: Stack | Broadcast,
    cohort: Cohort,
    *,
    key: Key,
    then: Callable[[SampleFeatures], Any] | None = None,
) -> tuple[Any, Cohort]:
    """Return the features of each member's training samples, in evaluation mode.

    Samples are not augmented.

    Args:
      federation: the clients.
      models: [M, ...], or one `Broadcast` model.
      cohort: the members; others have no valid rows.
      key: the round's key for this purpose.
      then: `then(features)` of one client [n, d] is what is returned instead of them; it is
        computed where the client's features are, and may use other arrays without a client axis.

    Returns:
      (features [M, n, d] or results [M, ...], the cohort without members whose features are not
      finite).
    """
    federation = federation.replace_training(augment=None)
    task, data, most = federation.task, federation.data, federation.data.train.capacity
    together = isinstance(models, Broadcast)
    schedule = federation.schedule.one_pass().fitting(most)
    rows = -(-most // schedule.batch_size) * schedule.batch_size
    none = SampleFeatures(
        jnp.zeros((rows, federation.num_features), task.dtype),
        jnp.zeros((rows,), data.labels.dtype),
        jnp.zeros((rows,), bool),
    )

    def see(seen, batch, rng, broadcast, client):
        features = task.features(broadcast if together else client.operand, batch.inputs)
        features = jnp.where(batch.valid[:, None], features, 0)
        now = SampleFeatures(features, jnp.where(batch.valid, batch.labels, 0), batch.valid)
        first = client.step * schedule.batch_size

        def put(all_rows, some):
            return lax.dynamic_update_slice_in_dim(all_rows, some.astype(all_rows.dtype), first, 0)

        return jax.tree.map(put, seen, now)

    def finish(seen, client):
        seen = jax.tree.map(lambda leaf: leaf[:most], seen)
        return seen if then is None else then(seen)

    seen, finite, _ = run_clients(
        federation,
        see,
        Broadcast(none),
        rows=cohort.maybe_static_rows,
        key=key,
        schedule=schedule,
        broadcast=models.model if together else None,
        operands=None if together else models,
        active=None if cohort.complete else cohort.mask,
        finish=finish,
    )
    return seen, cohort.mark_diverged(finite)
