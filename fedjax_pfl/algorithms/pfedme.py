"""Personalized Federated Learning with Moreau Envelopes.

Canh T. Dinh, Nguyen H. Tran, Tuan Dung Nguyen. NeurIPS 2020. https://arxiv.org/abs/2006.08848
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms import fedavg


@core.struct
class State(fedavg.State):
    personal: Any = core.per_client()  # theta_i


@core.struct
class Nearby(core.Trained):
    """The results of local training: the uploads w_i, and the personalized models.

    Attributes:
      personal: theta_i, [M, ...].
      trained: bool [M], the members that trained and stayed finite, whether they sent or not.
    """

    personal: Any = None
    trained: Any = None


@core.algorithm("pfedme")
class PFedMe(fedavg.Weighted):
    """pFedMe: gradient descent on the Moreau envelope, w_i <- w_i - eta lambda (w_i - theta_i).

    theta_i approximates argmin f_i(theta) + lambda/2 |theta - w_i|^2: on each minibatch b it takes
    K steps theta_i <- theta_i - eta_p (grad f_b(theta_i) + lambda (theta_i - w_i) + mu theta_i).
    Both begin a round at the server's w; theta_i goes on from minibatch to minibatch.

    theta_i is the personalized model. Its steps are those of the local optimizer, and w_i sends
    its running statistics of normalization layers.

    Attributes:
      proximal_weight: lambda. w_i may oscillate if eta lambda exceeds 2.
      inner_steps: K, steps of theta_i on a minibatch.
      personal_rate: eta_p, below 2 / (lambda + mu). It does not follow the schedule of the
        local learning rate eta.
      server_rate: beta of w <- (1 - beta) w + beta sum_i p_i w_i; the authors' tuned runs have 2.
        Running statistics are averaged.
      decay: mu, in the published code only; added to the local optimizer's weight decay.
      weighting: p_i by "size" (the published code), or "uniform" (the paper).
      participants: "all", all N clients train in each round and the w_i of its members are averaged
        (Alg. 1 and the published code); "sampled", only the members train.
    """

    proximal_weight: float = core.number(default=15.0, allowed="at least 0")
    inner_steps: int = core.static(default=5, allowed="at least 1")
    personal_rate: float = core.number(default=0.09, allowed="above 0")
    server_rate: float = core.number(default=1.0, allowed="above 0")
    decay: float = core.number(default=1e-3, allowed="at least 0")
    weighting: Literal["size", "uniform"] = core.static(default="size")
    participants: Literal["all", "sampled"] = core.static(default="all")

    def validate(self):
        rate, held = self.personal_rate, self.proximal_weight + self.decay
        most = f"below 2 / (proximal_weight + decay) = {2 / held if held else 0:g}"
        allowed = f"{most}: theta would move away"
        core.require(rate * held < 2, "personal_rate", rate, allowed)

    def check(self, federation):
        core.require_whole_models(self, federation)

    def remarks(self, federation):
        part = federation.participation
        sampled = part.sampled(federation.num_clients) or not part.punctual
        if self.participants == "sampled" or not sampled:
            return super().remarks(federation)
        return [*super().remarks(federation), "all clients train in every round, drawn or not"]

    def init(self, ctx):
        start = super().init(ctx)
        return State(**vars(start), personal=ctx.replicate(ctx.initial_model()))

    def round(self, ctx, state):
        if self.participants == "all":
            drawn = ctx.cohort.spread(ctx.cohort.mask, False)
            ctx = replace(ctx, cohort=replace(ctx.cohort_of(), arrives=drawn))
        return super().round(ctx, state)

    def local_update(self, ctx, state, received):
        cohort = ctx.cohort

        def towards(gradient, theta, w, client):
            def slope(g, p, w):
                return g + self.proximal_weight * (p - w) + self.decay * p

            return jax.tree.map(slope, gradient, theta, w)

        inner = ctx.sgd_step(learning_rate=self.personal_rate, correct=towards)
        rate = ctx.learning_rate * self.proximal_weight

        def step(carry, batch, rng, broadcast, client):
            theta, w = carry

            def nearer(k, theta):
                return inner(theta, batch, jax.random.fold_in(rng, k), w, client)

            theta = client.repeat(self.inner_steps, nearer, theta)
            return theta, jax.tree.map(lambda w, p: w - rate * (w - p), w, theta.model["params"])

        def finish(carry, client):
            theta, w = carry
            gradients = jnp.maximum(self.inner_steps * client.num_steps, 1)
            return {**theta.model, "params": w}, theta.model, theta.loss / gradients

        def begin(model):
            return inner.begin(model), model["params"]

        alike = isinstance(received, core.Broadcast)
        carry = core.Broadcast(begin(received.model)) if alike else jax.vmap(begin)(received)
        active = None if cohort.complete else cohort.mask
        runs = ctx.run_clients(step, carry, active=active, finish=finish)
        local, personal, loss = runs.carry
        cohort = cohort.mark_diverged(runs.finite, self.inner_steps * runs.steps)
        return Nearby(local, cohort, loss, personal=personal, trained=cohort.mask)

    def admitted(self, ctx, cohort):
        return cohort.masked(cohort.mask & cohort.arrives)

    def server_update(self, ctx, state: State, mean, weights, used: Nearby):
        beta = self.server_rate
        params = jax.tree.map(
            lambda w, m: (1 - beta) * w + beta * m, state.server["params"], mean["params"]
        )
        personal = used.cohort.scatter(state.personal, used.personal, where=used.trained)
        return replace(state, server={**mean, "params": params}, personal=personal)

    def record(self, ctx, trained, weights, **noted):
        cohort = trained.cohort
        up = (cohort.mask | cohort.diverged) & cohort.arrives
        return super().record(ctx, trained, weights, up=up, **noted)

    def models(self, ctx, state: State, rows):
        personal = trees.take(state.personal, rows)
        return {**super().models(ctx, state, rows), "personalized": personal}

    def new_client_start(self, ctx, state):
        return self.servers_model(state)

    def personalize(self, ctx, state, new_clients):
        """Return theta_i after one round of local training from w."""
        begin = core.Broadcast(self.new_client_start(ctx, state))
        return self.local_update(new_clients, state, begin).personal
