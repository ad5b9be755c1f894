"""FedCross: Towards Accurate Federated Learning via Multi-Model Cross-Aggregation.

Ming Hu, Peiheng Zhou, Zhihao Yue, Zhiwei Ling, Yihao Huang, Anran Li, Yang Liu, Xiang Lian,
Mingsong Chen. ICDE 2024. https://arxiv.org/abs/2210.08285
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, similarity, trees


@core.struct
class State:
    models: core.Stack = core.per_server()  # the middleware models, [K, ...]


@core.algorithm("fedcross")
class FedCross(core.Algorithm):
    """FedCross: as many server models as members, each of which one member trains (Alg. 1).

    Every round deals the K middleware models to the K members at random. A trained model v_i is
    crossed with a collaborative model among the others: w_i <- alpha v_i + (1 - alpha) v_co(i).
    The global model, which clients use, is the mean of all w_i.

    Attributes:
      alpha: weight of the model itself; 1: the models never meet.
      partner: the collaborative model: the one of the "lowest" or "highest" cosine of weights, or
        "in_order", at a distance that grows by one in each round.
      warmup_rounds: rounds at the beginning in which all w_i become the mean of all v_i.
    """

    batch_norm = "shared"
    aggregator_replaces = "matrix"

    alpha: float = core.number(default=0.99, allowed="in [0, 1]")
    partner: Literal["in_order", "highest", "lowest"] = core.static(default="lowest")
    warmup_rounds: int = core.number(default=0, allowed="at least 0")

    def check(self, federation):
        core.require_whole_models(self, federation)
        part = federation.participation
        if part.poisson is not None or part.window is not None:
            raise core.InputError(
                "fedcross has as many server models as a round has clients: take sampling='fixed' "
                "and no arrivals or departures."
            )

    def init(self, ctx):
        count = ctx.federation.participation.cohort_size
        return State(trees.replicate(ctx.initial_model(), count))

    def round(self, ctx, state):
        order = ctx.cohort.order(ctx.key_for("dispatch"))  # who trains model k
        place = jnp.argsort(order)
        received = trees.take(state.models, place)
        trained, cohort, loss = ctx.train(received)
        sent = ctx.upload(trained, received, cohort=cohort)

        others = cohort.mask & ~jnp.eye(len(order), dtype=bool)
        if self.partner == "in_order":
            partner = self.in_order(ctx.t, place, cohort.mask)
        else:
            models = ctx.plan.trainable_shared(sent)
            alike = similarity.cosines(models, models)
            sign = 1 if self.partner == "highest" else -1
            partner = jnp.argmax(jnp.where(others, sign * alike, -jnp.inf), axis=1)
        own = jnp.arange(len(order))
        partner = jnp.where(jnp.any(others, axis=1), partner, own)
        itself, other = (jax.nn.one_hot(k, len(order), dtype=ctx.dtype) for k in (own, partner))
        crossed = self.alpha * itself + (1 - self.alpha) * other
        together = mixing.normalize(cohort.mask.astype(ctx.dtype))
        weights = jnp.where(ctx.t < self.warmup_rounds, together, crossed)
        weights = jnp.where(cohort.mask[:, None], weights, 0)

        mixed = ctx.mix(weights, sent, onto=received)
        return State(trees.take(mixed, order)), ctx.record(
            cohort, clients={"train_loss": loss}, mixing=weights
        )

    def in_order(self, t, place, mask) -> jax.Array:
        """Return each member's partner, [M], along the members' models that came back."""
        rank = jnp.sum(mask & (place < place[:, None]), axis=1)
        count = jnp.sum(mask)
        distance = t % jnp.maximum(count - 1, 1) + 1
        wanted = (rank + distance) % jnp.maximum(count, 1)
        return jnp.argmax(mask & (rank == wanted[:, None]), axis=1)

    def models(self, ctx, state, rows):
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), state.models)
        return {"personalized": core.Broadcast(mean), "global": core.Broadcast(mean)}
