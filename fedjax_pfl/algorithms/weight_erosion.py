"""Weight Erosion: clients whose gradients lead elsewhere lose weight for good (Grimberg 2020)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import mixing, similarity
from fedjax_pfl.algorithm import Algorithm
from fedjax_pfl.clients import Shared
from fedjax_pfl.errors import require
from fedjax_pfl.registry import method
from fedjax_pfl.structs import per_client, shared, struct


@struct
class State:
    server: Any = shared()
    alpha: Any = per_client()  # [N], unnormalised weights


@method("weight_erosion")
class WeightErosion(Algorithm):
    """One model for Alice, moved along the weighted mean of all agents' summed gradients.

    d_i = |G_alice - G_i| / |G_alice|, alpha_i <- max(0, alpha_i - (1 + p_s floor((r-1) B / n_i))
    p_d d_i), x <- x - eta sum alpha_i G_i / sum alpha_i. Written for full participation; a round
    without Alice changes nothing.

    Attributes:
      alice: permanent id of the client served.
      distance_penalty: p_d. WAFFLE's Table 3 has .006 to .0088 on MNIST and .6 to 1.1 on CIFAR-10.
      size_penalty: p_s, not stated there: 0.
    """

    batch_norm = "shared"

    alice: int = 0
    distance_penalty: float = 0.006
    size_penalty: float = 0.0

    def validate(self):
        require(self.alice >= 0, "alice", self.alice, "a client, counted from 0")
        for name in ("distance_penalty", "size_penalty"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")

    def check(self, federation):
        self.check_whole_models(federation)
        ids = np.asarray(federation.data.ids)
        require(self.alice in ids, "alice", self.alice, f"a client in {ids.min()}..{ids.max()}")

    def init(self, ctx):
        return State(ctx.initial_model(), jnp.ones((ctx.num_clients,), ctx.learning_rate.dtype))

    def serves(self, ctx):
        return ctx.federation.data.ids == self.alice

    def round(self, ctx, state):
        trained, cohort, loss, gradient = ctx.train(Shared(state.server), mean_gradient=True)
        is_alice = cohort.ids == self.alice
        there = jnp.any(is_alice & cohort.mask)
        schedule, sizes = ctx.federation.schedule, ctx.sizes()
        steps = schedule.total_steps(sizes)
        total = jax.tree.map(  # G_i, the sum over the steps
            lambda g: g * steps.reshape((-1,) + (1,) * (g.ndim - 1)).astype(g.dtype), gradient
        )
        hers = jax.tree.map(lambda leaf: leaf[jnp.argmax(is_alice)][None], total)
        length = jnp.sqrt(similarity.squared_norms(hers))
        apart = jnp.sqrt(similarity.squared_norms(jax.tree.map(jnp.subtract, total, hers)))
        distance = jnp.where(length > 0, apart / jnp.where(length > 0, length, 1), 0)
        passes = (ctx.t * schedule.batch_size) // jnp.maximum(sizes, 1)
        loss_of_weight = (1 + self.size_penalty * passes) * self.distance_penalty * distance
        alpha = cohort.gather(state.alpha)
        alpha = jnp.where(there, jnp.maximum(0, alpha - loss_of_weight), alpha)
        weights = mixing.normalize(alpha, cohort.mask & there)
        direction = mixing.weighted_sum(
            weights, total, onto=jax.tree.map(jnp.zeros_like, state.server["params"])
        )
        rate = ctx.learning_rate
        params = jax.tree.map(lambda x, g: x - rate * g, state.server["params"], direction)
        mean = mixing.weighted_sum(weights, trained, onto=state.server)
        clients = {"train_loss": loss, "weight": weights, "distance": distance}
        return State({**mean, "params": params}, cohort.scatter(state.alpha, alpha)), ctx.record(
            cohort, clients=clients, mixing=weights
        )

    def models(self, ctx, state, rows):
        return {"personalized": Shared(state.server)}
