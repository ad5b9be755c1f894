"""Two algorithms that ask for a second head or for frozen leaves before the leaf plan is made.

They are after FedRoD and FedBABU: no products, but each round is held against plain loops.
"""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import fedjax_pfl as pfl
from fedjax_pfl import mixing
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.harness import Case, dense
from tests.references import network

ROUNDS = 3
SAMPLED = {"participation": 0.6}


class Apart(nn.Module):
    """The references' network, which says what its features are."""

    def setup(self):
        self.hidden = dense(5, None)
        self.head = dense(3, None)

    def features(self, x):
        return nn.tanh(self.hidden(x))

    def __call__(self, x):
        return self.head(self.features(x))


@pfl.core.struct
class TwoHeaded(FedAvg):
    """FedRoD without its balanced loss: the personal head learns what the generic one lacks."""

    def prepare(self, federation):
        return super().prepare(federation.with_personal_head())

    def round(self, ctx, state):
        task, rate = ctx.federation.task, ctx.learning_rate

        def mean_loss(logits, batch):
            losses = jnp.where(batch.valid, task.losses(logits, batch.labels), 0)
            return jnp.sum(losses) / jnp.maximum(jnp.sum(batch.valid), 1)

        def step(model, batch, rng, broadcast, client):
            def objective(params):
                generic, personal, statistics, _ = task.heads(
                    {**model, "params": params}, batch.inputs, True, rng, batch.valid, detached=True
                )
                both = lax.stop_gradient(generic) + personal
                return mean_loss(generic, batch) + mean_loss(both, batch), statistics

            gradient, statistics = jax.grad(objective, has_aux=True)(model["params"])
            params = optax.tree.add_scale(model["params"], -rate, gradient)
            return {**model, "params": params, **statistics}

        models, finite, steps = ctx.run_clients(step, self.received(state, ctx.cohort.rows))
        cohort = ctx.cohort.mark_diverged(finite, steps)
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        uploads, private = ctx.plan.split(models)
        server = mixing.weighted_sum(weights, uploads, onto=state.server)
        return replace(
            state, server=server, private=cohort.scatter(state.private, private)
        ), ctx.record(cohort)

    def models(self, ctx, state, rows):
        received = self.received(state, rows)
        generic = ctx.federation.task.without_personal(received)
        return {"personalized": received, "global": generic}


@pfl.core.struct
class FrozenHead(FedAvg):
    """FedBABU: the head keeps its first value in all rounds, and is trained when it is scored."""

    share = "body"

    def prepare(self, federation):
        return super().prepare(federation.with_frozen("head"))

    def adaptation(self):
        return pfl.Adaptation(epochs=2, learning_rate=0.1)


def case(**options):
    return Case(rounds=ROUNDS, model=Apart(), **SAMPLED, **options)


def in_rounds(case, initial, private, train):
    """All clients' models after each round: all but the layer `private` averaged by size."""
    models, batches, history = [initial] * case.num_clients, case.batches(), []
    for t, cohort in enumerate(case.cohorts):
        for i in cohort:
            models[i] = train(models[i], batches[t][i], case.x, case.y, case.rates[t])
        shares = case.sizes[cohort] / case.sizes[cohort].sum()
        uploads = [{k: models[i][k] for k in initial if k != private} for i in cohort]
        mean = network.combine(shares, uploads)
        models = [{**model, **mean} for model in models]
        history.append(list(models))
    return history


def assert_stack(actual, models):
    wanted = jax.tree.map(lambda *leaves: np.stack(leaves), *models)
    for layer in wanted:
        assert_close(actual["params"][layer], wanted[layer], layer)
