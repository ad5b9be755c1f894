"""An Efficient Framework for Clustered Federated Learning.

Avishek Ghosh, Jichan Chung, Dong Yin, Kannan Ramchandran. NeurIPS 2020.
https://arxiv.org/abs/2006.04088
"""

import math
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.algorithms.common.best_model import best_fitting, mean_private
from fedjax_pfl.utils import keys

DRAWS = 100  # sets of first models that "balanced_redraw" tries at most


@core.struct
class State:
    models: core.Stack = core.per_server()  # theta_k, [K, ...]; their private leaves mean nothing
    private: core.Tree = core.per_client()  # statistics that stay with their clients


@core.algorithm("ifca")
class Ifca(core.Algorithm):
    """IFCA: K server models, of which each client trains the one that fits it best (Alg. 1).

    z_i = argmin_k f_i(theta_k); theta_k <- mean of LocalSGD(theta_k) over the members with z_i = k.
    A model that no member chooses is unchanged.

    Attributes:
      clusters: K.
      averaging: "models", or "gradients": theta_k <- theta_k - (eta / M) sum of the full gradients
        of its members, M all members; no local training.
      weighting: of models within a cluster, by "size" or "uniform" (the published code, whose
        clients are equal).
      initial: the first models. "seeds": K independent draws. "balanced_redraw": redraw all until
        each fits a minimum fraction of the clients best (35 % with two models, 10 % with four,
        else 40 % / K, as in the published code); if 100 draws fail, the most even one.
        "group_warmup": in the first `warmup_rounds` rounds each client trains the model of its
        random group.
      warmup_rounds: rounds with random groups; only for "group_warmup".
      scored_by: samples by which a client's model is chosen for scoring: "train", or "test", which
        uses test labels (the published code on MNIST and CIFAR-10).
    """

    batch_norm = "shared"
    server_needs = "sums"
    also_sent = ("the choice of a cluster",)

    clusters: int = core.static(default=2, allowed="at least 1")
    averaging: Literal["models", "gradients"] = core.static(default="models")
    weighting: Literal["size", "uniform"] = core.static(default="size", needs="averaging='models'")
    initial: Literal["seeds", "balanced_redraw", "group_warmup"] = core.static(default="seeds")
    warmup_rounds: int = core.number(
        default=20, allowed="at least 0", needs="initial='group_warmup'"
    )
    scored_by: Literal["train", "test"] = core.static(default="train")

    @property
    def aggregator_replaces(self):
        return "mean" if self.averaging == "models" else "nothing"

    def check(self, federation):
        core.require_whole_models(self, federation)
        if federation.same_initial_model and self.clusters > 1:
            raise core.InputError(
                "ifca begins with different models, but the initial model gives every parameter: "
                "leave some layer out of it, such as the head."
            )
        if self.averaging == "gradients" and federation.plan.normalized:
            raise core.InputError(
                "ifca's averaging=gradients updates no running statistics of normalization layers: "
                "take averaging=models, or a network without such layers."
            )

    def has_step(self, federation):
        if self.averaging == "gradients":
            return np.asarray(federation.data.train.size) > 0
        return super().has_step(federation)

    def remarks(self, federation):
        notes = super().remarks(federation)
        if self.averaging == "gradients":
            notes.append("one step along full gradients a round, without local training")
        if self.scored_by == "test":
            notes.append("each client's model is chosen by its test labels")
        return notes

    def init(self, ctx):
        _, private = ctx.plan.split(ctx.replicate(ctx.initial_model()))
        if self.initial != "balanced_redraw":
            return State(self._draw(ctx), private)
        everyone = ctx.cohort_of().rows
        enough = enough_takers(self.clusters, ctx.num_clients)

        def unbalanced(carry):
            number, _, least = carry
            return (number < DRAWS) & (least < enough)

        def redraw(carry):
            number, models, least = carry
            drawn = self._draw(ctx, number)
            chosen, _ = best_fitting(ctx, drawn, rows=everyone)
            fewest = jnp.min(jnp.bincount(chosen, length=self.clusters)).astype(jnp.int32)
            better = fewest > least
            models = jax.tree.map(lambda new, old: jnp.where(better, new, old), drawn, models)
            return number + 1, models, jnp.where(better, fewest, least)

        begin = (jnp.int32(0), self._draw(ctx), jnp.int32(-1))
        return State(lax.while_loop(unbalanced, redraw, begin)[1], private)

    def _draw(self, ctx, number=0):
        """Return initial models [K, ...]; model 0 of draw 0 is other algorithms' initial model."""
        drawn = []
        for k in range(self.clusters):
            key = keys.derive(ctx.key, f"init{k}" if k else "init")
            key = jnp.where(jnp.asarray(number) == 0, key, jax.random.fold_in(key, number))
            drawn.append(ctx.federation.initial_model(key))
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)

    def round(self, ctx, state):
        own = ctx.cohort.gather(state.private)
        choice, lowest = self._choose(ctx, state.models, own)
        takers = jax.nn.one_hot(choice, self.clusters, dtype=ctx.dtype).T  # [K, M]
        received = ctx.plan.with_private(trees.take(state.models, choice), own)
        values = {"cluster": choice}
        warming_up = self.initial == "group_warmup" and ctx.t < self.warmup_rounds
        down = jnp.where(warming_up, 1, self.clusters)
        if self.averaging == "gradients":
            gradient, cohort = ctx.full_gradient(received, ctx.cohort)
            zeros = jax.tree.map(jnp.zeros_like, gradient)
            gradient = ctx.upload(gradient, zeros, "gradient", cohort)
            shares = takers * mixing.normalize(cohort.mask.astype(ctx.dtype))  # 1/M
            models = self._moved(ctx, state.models, shares, gradient)
            return replace(state, models=models), ctx.record(
                cohort, down=down, clients={"train_loss": lowest, **values}
            )
        trained, cohort, loss = ctx.train(received)
        sizes = ctx.sizes() if self.weighting == "size" else 1
        weights = mixing.normalize(takers * sizes, cohort.mask)
        sent = ctx.upload(trained, received, cohort=cohort)
        models = ctx.aggregate_rows(weights, sent, onto=state.models)
        private = cohort.scatter(state.private, ctx.plan.split(trained)[1])
        return State(models, private), ctx.record(
            cohort,
            down=down,
            clients={"train_loss": loss, **values},
            mixing=weights[choice],
        )

    def _choose(self, ctx, models, own):
        """Return (z [M], the loss [M] of the chosen model, NaN during the warm-up)."""
        if self.initial != "group_warmup":
            return best_fitting(ctx, models, own)
        free = ctx.t >= self.warmup_rounds
        choice, loss = best_fitting(ctx, models, own, active=ctx.cohort.mask & free)
        groups = random_groups(ctx, self.clusters)[ctx.cohort.rows]
        return jnp.where(free, choice, groups), jnp.where(free, loss, jnp.nan)

    @staticmethod
    def _moved(ctx, models, shares, gradient):
        """Return theta_k - eta sum_i shares_ki g_i, [K, ...]; running statistics are unchanged."""
        none = jax.tree.map(jnp.zeros_like, models["params"])
        slopes = jax.vmap(mixing.weighted_sum, (0, None, 0))(shares, gradient, none)
        params = optax.tree.add_scale(models["params"], -ctx.learning_rate, slopes)
        return {**models, "params": params}

    def models(self, ctx, state, rows):
        own = trees.take(state.private, rows)
        chosen, _ = best_fitting(ctx, state.models, own, rows, split=self.scored_by)
        return {"personalized": ctx.plan.with_private(trees.take(state.models, chosen), own)}

    def personalize(self, ctx, state, new_clients):
        """Train the model that fits a new client's training samples best."""
        everyone = new_clients.cohort
        own = mean_private(state, everyone.size)
        chosen, _ = best_fitting(new_clients, state.models, own, everyone.rows)
        start = ctx.plan.with_private(trees.take(state.models, chosen), own)
        return new_clients.train(start).models


def enough_takers(clusters, clients):
    """Return how many of the clients each initial model must fit best to be balanced."""
    part = {1: 0.0, 2: 0.35, 4: 0.1}.get(clusters, 0.4 / clusters)
    return math.ceil(part * clients - 1e-9)


def random_groups(ctx, count):
    """Return random groups of nearly equal size, int32 [N], drawn by permanent ids."""
    key = keys.derive(ctx.key, "ifca_groups")
    rank = jnp.argsort(jnp.lexsort((ctx.ids, keys.lots(key, ctx.ids))))
    return (rank * count // ctx.num_clients).astype(jnp.int32)
