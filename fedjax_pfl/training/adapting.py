"""Local adaptation of model copies, before scoring or for new clients."""

import jax
import jax.numpy as jnp

from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.federation.regularizers import proximal
from fedjax_pfl.training.local_sgd import train
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Key, Scalar, Stack


def adapt(
    federation: Federation,
    models: Stack | Broadcast,
    cohort: Cohort,
    how: Adaptation,
    *,
    key: Key,
    learning_rate: Scalar,
    noise_index: int = 0,
) -> Stack:
    """Train copies of `models` for a cohort as `how` specifies, [M, ...].

    A copy that becomes non-finite is replaced with the unadapted model. With "head" or "body" all
    other leaves stay unchanged, including running statistics of their normalization layers. Leaves
    that rounds leave frozen are trained too.

    Args:
      models: [M, ...], or one `Broadcast` model.
      key: the round's key for this purpose.
      learning_rate: the round's learning rate.
      noise_index: of the adaptation, see `LocalStep`.
    """
    if how.optimizer is not None:
        federation = federation.replace_training(optimizer=how.optimizer, clip_norm=None)
    rate = learning_rate
    if how.learning_rate is not None:
        rate = jnp.asarray(how.learning_rate, rate.dtype)
    if how.rate_factor is not None:
        rate = rate * jnp.asarray(how.rate_factor, rate.dtype)
    moves = trainable = None
    model = models.model if isinstance(models, Broadcast) else models
    if any(federation.plan.frozen):  # leaves frozen in rounds are trained here
        trainable = jax.tree.map(lambda _: True, model["params"])
    if how.leaves != "all":
        is_head = federation.plan.head_mask(model)
        moves = jax.tree.map(lambda head: head == (how.leaves == "head"), is_head)
        trainable = moves["params"]
    pull = {}
    if how.proximal_weight is not None:
        where = "broadcast" if isinstance(models, Broadcast) else "operands"
        pull = {"extra_loss": proximal(how.proximal_weight), where: model["params"]}
    adapted = train(
        federation,
        models,
        cohort,
        key=key,
        learning_rate=rate,
        schedule=how.schedule(federation.schedule),
        trainable=trainable,
        noise_index=noise_index,
        **pull,
    ).models
    if moves is None:
        return adapted
    original = trees.replicate(model, cohort.size) if isinstance(models, Broadcast) else models
    return jax.tree.map(lambda on, new, old: new if on else old, moves, adapted, original)
