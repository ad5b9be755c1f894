"""Weight Erosion: An Update Aggregation Scheme for Personalized Collaborative Machine Learning.

Felix Grimberg, Mary-Anne Hartley, Martin Jaggi, Sai Praneeth Karimireddy. Domain Adaptation and
Representation Transfer, and Distributed and Collaborative Learning (DART and DCL), 2020.
https://doi.org/10.1007/978-3-030-60548-3_16
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, mixing, training
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.alice import (
    ForAlice,
    squared_distances_to_alice,
    summed_gradients,
)

PUBLISHED = 0.006  # p_d for 100 rounds on MNIST, A and C (WAFFLE's Table 3)


@core.struct
class State(fedavg.State):
    alpha: Any = core.per_client()  # [N], unnormalized weights


@core.struct
class Summed(core.Trained):
    """The uploads of agents: models and summed gradients.

    Attributes:
      total: G_i, the raw gradients summed over the steps, like the parameters [M, ...].
      distance: d_i, [M].
    """

    total: Any = None
    distance: Any = None


@core.algorithm("weight_erosion")
class WeightErosion(ForAlice, fedavg.FedAvg):
    """Weight Erosion: one model for Alice, moved along a weighted mean of summed gradients.

    d_i = |G_alice - G_i| / |G_alice|, alpha_i <- max(0, alpha_i - (1 + p_s floor((r-1) B / n_i))
    p_d d_i), x <- x - eta sum alpha_i G_i / sum alpha_i. The paper has full participation; here
    absent agents have no weight and keep their alpha.

    Attributes:
      alice: permanent id of the client served.
      distance_penalty: p_d. WAFFLE's Table 3 has 0.006 to 0.0088 on MNIST and 0.6 to 1.1 on
        CIFAR-10, one for each distribution, for 100 rounds. They are chosen so that the last other
        agent loses its weight in the round in which WAFFLE gives Alice all weight.
      size_penalty: p_s; WAFFLE's paper does not state it: 0.
    """

    server_needs = "models"
    aggregator_replaces = "nothing"

    alice: int = core.number(default=0, allowed="at least 0")
    distance_penalty: float = core.number(default=PUBLISHED, allowed="at least 0")
    size_penalty: float = core.number(default=0.0, allowed="at least 0")

    def check(self, federation):
        super().check(federation)
        size, samples = federation.schedule.batch_size, federation.data.train.capacity
        allowed = (
            f"below {training.COUNT_LIMIT:,} when multiplied by the {samples:,} samples of a client"
        )
        core.require(size * samples < training.COUNT_LIMIT, "batch_size", size, allowed)
        if getattr(federation.uploads, "feedback", None) is not None:
            raise core.InputError(
                "weight_erosion's server moves along summed gradients, on which error_feedback "
                "does not act: leave it out."
            )

    def remarks(self, federation):
        notes = super().remarks(federation)
        if np.isclose(self.distance_penalty, PUBLISHED):
            notes.append(
                f"its default distance_penalty of {PUBLISHED:g} is WAFFLE's for MNIST and 100 "
                "rounds: other data and fewer rounds need another"
            )
        return notes

    def init(self, ctx):
        start = super().init(ctx)
        return State(**vars(start), alpha=jnp.ones((ctx.num_clients,), ctx.dtype))

    def local_update(self, ctx, state, received):
        trained = super().local_update(ctx, state, received, mean_gradient=True)
        total = summed_gradients(ctx, trained.gradient)
        zeros = jax.tree.map(jnp.zeros_like, total)
        total = ctx.upload(total, zeros, "gradients", trained.cohort)
        is_alice = ctx.cohort.ids == self.alice
        apart, length = map(jnp.sqrt, squared_distances_to_alice(total, is_alice))
        distance = mixing.ratio(apart, length)
        return Summed(trained.models, trained.cohort, trained.loss, total=total, distance=distance)

    def weigh(self, ctx, state: State, sent: Summed):
        batch, sizes = ctx.federation.schedule.batch_size, jnp.maximum(ctx.sizes(), 1)
        passes = _passes(ctx.t, batch, sizes, ctx.dtype)
        lost = (1 + self.size_penalty * passes) * self.distance_penalty * sent.distance
        alpha = jnp.maximum(0, sent.cohort.gather(state.alpha) - lost)
        weights = mixing.normalize(alpha, sent.cohort.mask)
        return weights, replace(state, alpha=sent.cohort.scatter(state.alpha, alpha))

    def server_update(self, ctx, state, mean, weights, used: Summed):
        params = state.server["params"]
        none = jax.tree.map(jnp.zeros_like, params)
        direction = mixing.weighted_sum(weights, used.total, onto=none)
        params = jax.tree.map(lambda x, g: x - ctx.learning_rate * g, params, direction)
        return replace(state, server={**mean, "params": params})

    def record(self, ctx, trained: Summed, weights, **noted):
        return super().record(ctx, trained, weights, distance=trained.distance, **noted)


def _passes(rounds, batch_size: int, sizes, dtype):
    """Return floor(rounds * batch_size / sizes) without the product, which could exceed int32."""
    whole, rest = rounds // sizes, rounds % sizes
    return whole.astype(dtype) * batch_size + rest * batch_size // sizes
