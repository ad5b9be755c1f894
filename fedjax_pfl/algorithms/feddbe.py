"""Eliminating Domain Bias for Federated Learning in Representation Space.

Jianqing Zhang, Yang Hua, Jian Cao, Hao Wang, Tao Song, Zhengui Xue, Ruhui Ma, Haibing Guan.
NeurIPS 2023. https://arxiv.org/abs/2311.14975
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing
from fedjax_pfl.algorithms import fedavg

MEMORY = "bias_memory"


@dataclass(frozen=True)
class Shifted(core.WrappedTask):
    """A network whose head sees its features plus a vector b."""

    added = (MEMORY,)

    width: int

    def draw(self, key, inputs, model):
        return {MEMORY: jnp.zeros(self.width)}

    def classify(self, model, features):
        return super().classify(model, features + model["params"][MEMORY])


@core.struct
class State(fedavg.State):
    consensus: jax.Array = core.per_server()  # z_bar, [d]


@core.algorithm("feddbe")
class FedDBE(fedavg.FedAvg):
    """FedDBE: FedAvg of networks whose features have one mean, with a bias b_i of each client.

    Client i minimizes CE(h(z + b_i)) + kappa |r - z_bar|^2 / 2d over body, head h and b_i, which
    stays with it. z are the features, [d], and r is their running mean over the round's
    minibatches, r <- mu mean(z) + (1 - mu) r from 0, whose gradient is that of the last term.

    z_bar is found once, before the first round: all N clients train the initial model for a round
    without b_i and the second term, and send their last r. The models are discarded.

    Attributes:
      kappa: weight of the distance to the consensus z_bar.
      mu: weight of a minibatch in the running mean; at 1 each is compared by itself.
    """

    absent_idle = False
    unprotected = ("the mean features of its minibatches",)

    kappa: float = core.number(default=50.0, allowed="at least 0")
    mu: float = core.number(default=1.0, allowed="in (0, 1]")

    def prepare(self, federation):
        width = federation.num_features
        shifted = federation.with_network(lambda task: Shifted.around(task, width), (MEMORY,))
        return super().prepare(shifted)

    def check(self, federation):
        super().check(federation)
        stage = federation.uploads
        if getattr(stage, "uniform", False) and federation.participation.sampled(
            federation.num_clients
        ):
            raise core.InputError(
                "feddbe averages the features of all clients before its first round, which sums "
                "over sampled cohorts do not cover: let all clients take part."
            )

    def remarks(self, federation):
        notes = "kappa is 0: features are not pulled to a common mean"
        return [*super().remarks(federation), *[notes] * (not self.kappa)]

    def init(self, ctx):
        zero = jnp.zeros((ctx.federation.num_features,), ctx.dtype)
        return State(**vars(super().init(ctx)), consensus=zero)

    def round(self, ctx, state: State):
        first, none = ctx.t == 0, jnp.zeros((ctx.num_clients,), jnp.int32)
        consensus, steps = ctx.when(
            first, lambda: self.common_mean(ctx, state), lambda: (state.consensus, none)
        )
        after, record = super().round(ctx, replace(state, consensus=consensus))
        asked = first & ctx.reachable()
        numbers = none + asked * consensus.size
        further = {
            "local_steps": record.clients["local_steps"] + steps,
            "numbers_up": numbers,
            "numbers_down": numbers,
        }
        record = replace(
            record, down=record.down + asked[:, None], clients=record.clients | further
        )
        return after, record

    def common_mean(self, ctx, state: State):
        """Return (z_bar from one round of all clients without b_i, their steps [N])."""
        everyone = replace(ctx, cohort=ctx.cohort_of().masked(ctx.reachable()))

        def keep_memory(gradient, params, broadcast, client):
            return {**gradient, MEMORY: jnp.zeros_like(gradient[MEMORY])}

        trained, means = self.train(
            everyone, core.Broadcast(ctx.initial_model()), state.consensus, 0.0,
            correct=keep_memory, purpose="preliminary",
        )  # fmt: skip
        none = jnp.zeros_like(means)
        sent = everyone.upload(means, none, "means", trained.cohort, compressed=False)
        weights = mixing.by_size(everyone.sizes(), trained.cohort.mask)
        return everyone.aggregate(weights, sent, onto=state.consensus), trained.cohort.steps

    def local_update(self, ctx, state: State, received):
        return self.train(ctx, received, state.consensus, self.kappa)[0]

    def train(self, ctx, models, consensus, kappa, correct=None, purpose=None):
        """Train the cohort; return (the results, each member's last r [M, d])."""

        def apart(params, batch, consensus, client):
            away = self.running(client.operand, batch.features, batch.valid) - consensus
            return 0.5 * kappa * jnp.mean(jnp.square(away))

        step, task = ctx.sgd_step(extra_loss=apart, correct=correct), ctx.federation.task

        def step_and_see(carry, batch, rng, consensus, client):
            state, mean = carry
            # The same as in the step's own forward pass, so that a compiler can make it once.
            features = task.outputs(state.model, batch.inputs, True, rng, batch.valid).features
            after = step(state, batch, rng, consensus, replace(client, operand=mean))
            return after, self.running(mean, features, batch.valid)

        if isinstance(models, core.Broadcast):
            begin = core.Broadcast((step.begin(models.model), jnp.zeros_like(consensus)))
        else:
            zeros = jnp.zeros((ctx.cohort.size, consensus.size), consensus.dtype)
            begin = step.begin_all(models), zeros
        (local, mean), finite, steps = ctx.run_clients(
            step_and_see, begin, broadcast=consensus, purpose=purpose
        )
        cohort = ctx.cohort.mark_diverged(finite, steps)
        return core.Trained(local.model, cohort, local.loss / jnp.maximum(steps, 1)), mean

    def running(self, mean, features, valid):
        """Return r after a minibatch with features [B, d]."""
        count = jnp.sum(valid)
        now = jnp.sum(jnp.where(valid[:, None], features, 0), axis=0) / jnp.maximum(count, 1)
        return jnp.where(count > 0, self.mu * now + (1 - self.mu) * mean, mean)

    def new_client_start(self, ctx, state):
        model = self.servers_model(state)
        none = jnp.zeros_like(model["params"][MEMORY])
        return {**model, "params": {**model["params"], MEMORY: none}}

    def personalize(self, ctx, state, new_clients):
        """Train for a round from the server's model with b = 0."""
        start = core.Broadcast(self.new_client_start(ctx, state))
        return self.local_update(new_clients, state, start).models
