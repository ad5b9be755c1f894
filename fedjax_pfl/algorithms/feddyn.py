"""Federated Learning Based on Dynamic Regularization.

Durmus Alp Emre Acar, Yue Zhao, Ramon Matas Navarro, Matthew Mattina, Paul N. Whatmough,
Venkatesh Saligrama. ICLR 2021. https://arxiv.org/abs/2111.04263
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.algorithms import fedavg


@core.struct
class State(fedavg.State):
    drift: Any = core.per_server()  # h, like the parameters
    gradients: Any = core.per_client()  # g_i
    average: Any = core.per_server()  # mean of the last cohort's models
    # what each client trained last; only with score_last
    last: core.Stack | None = core.per_client()


@core.struct
class Regularized(core.Trained):
    """The results of local training: the uploads, and the linear terms that stay with the client.

    Attributes:
      gradients: g_i, [M, ...]; unchanged for members that took no step.
    """

    gradients: Any = None


@core.algorithm("feddyn")
class FedDyn(fedavg.FedAvg):
    """Clients descend f_i(y) - <g_i, y> + (alpha / 2) |y - theta|^2; g_i tracks their gradients.

    Algorithm 1: members g_i <- g_i - alpha (y_i - theta); the server h <- h - (alpha / N) sum over
    members of (y_i - theta), with N all clients, and theta <- mean of the y_i - h / alpha. Means
    are uniform. From zero, h is the mean of all g_i (with `scaling="size"`, alpha times that of
    g_i / alpha_i). A round without uploads changes nothing.

    The published code scores averages of clients' models, not theta, which clients receive:
    compare its numbers with "average" or "everyone".

    Attributes:
      alpha: 0.1, 0.01 or 0.001 in the paper, larger where clients take fewer steps. If it is too
        small for the steps, theta diverges.
      scaling: "equal", the same alpha for all clients (the paper); or "size", alpha n_mean / n_i
        with the mean over all clients (the code). The server uses alpha.
      score_last: also score "everyone", the mean of all clients' last trained models, or of the
        initial model for clients that have not trained yet. The state then holds these models.
    """

    alpha: float = core.number(default=0.01, allowed="above 0")
    scaling: Literal["equal", "size"] = core.static(default="equal")
    score_last: bool = core.static(default=False)

    def check(self, federation):
        core.require_whole_models(self, federation)
        stage = federation.uploads
        if self.score_last and getattr(stage, "privacy", None) is not None:
            raise core.InputError(
                "feddyn's model 'everyone' is a mean of clients' own models, which dp='client' "
                "does not cover: leave score_last out."
            )
        if self.scaling == "size" and getattr(stage, "noise_of_sums", False):
            raise core.InputError(
                "feddyn's scaling='size' tells clients the mean number of samples, which "
                "dp_placement='distributed' keeps private: take scaling='equal'."
            )

    def init(self, ctx):
        start = super().init(ctx)
        zero = jax.tree.map(jnp.zeros_like, start.server["params"])
        return State(
            **vars(start),
            drift=zero,
            gradients=ctx.replicate(zero),
            average=start.server,
            last=ctx.replicate(ctx.initial_model()) if self.score_last else None,
        )

    def strengths(self, ctx):
        """Return alpha of each member, [M]."""
        if self.scaling == "equal":
            return jnp.full((ctx.cohort.size,), self.alpha, ctx.dtype)
        mean = jnp.mean(ctx.federation.data.train.size.astype(ctx.dtype))
        return self.alpha * mean / jnp.maximum(ctx.sizes(), 1).astype(ctx.dtype)

    def local_update(self, ctx, state: State, received):
        def correct(gradient, params, theta, client):
            own, alpha = client.operand
            return jax.tree.map(
                lambda g, gi, y, w: g - gi + alpha * (y - w), gradient, own, params, theta
            )

        theta, alphas = state.server["params"], self.strengths(ctx)
        gradients = ctx.cohort.gather(state.gradients)
        sent = super().local_update(
            ctx,
            state,
            received,
            correct=correct,
            operands=(gradients, alphas),
            broadcast=theta,
        )
        gradients = jax.tree.map(
            lambda gi, y, w: gi - trees.expand_to(y, alphas) * (y - w),
            gradients,
            sent.models["params"],
            theta,
        )
        return Regularized(sent.models, sent.cohort, sent.loss, gradients=gradients)

    def weigh(self, ctx, state, sent):
        return mixing.normalize(sent.cohort.mask.astype(ctx.dtype)), state  # 1/M

    def server_update(self, ctx, state: State, mean, weights, used: Regularized):
        theta, target = state.server["params"], mean["params"]
        stage = ctx.federation.uploads
        members = jnp.sum(used.cohort.mask)
        if stage is not None and stage.noise_of_sums:  # the number of members is private
            members = ctx.federation.participation.expected
        part = members / ctx.num_clients  # fraction of all clients
        arrived = ctx.arrived(weights)  # otherwise the mean is theta: h must not step again
        drift = jax.tree.map(
            lambda h, y, w: h - (self.alpha * part * (y - w)).astype(h.dtype),
            state.drift,
            target,
            theta,
        )
        params = jax.tree.map(
            lambda y, h, w: jnp.where(arrived, y - h / self.alpha, w), target, drift, theta
        )
        average = jax.tree.map(lambda new, old: jnp.where(arrived, new, old), mean, state.average)
        last = state.last
        if last is not None:
            last = used.cohort.scatter(last, used.models)
        return replace(
            state,
            server={**mean, "params": params},
            drift=drift,
            gradients=used.cohort.scatter(state.gradients, used.gradients),
            average=average,
            last=last,
        )

    def models(self, ctx, state: State, rows):
        named = super().models(ctx, state, rows)
        if "global" not in named:  # the average has no running statistics
            return named
        named["average"] = core.Broadcast(state.average)
        if state.last is not None:
            everyone = jax.tree.map(lambda y: jnp.mean(y, axis=0).astype(y.dtype), state.last)
            named["everyone"] = core.Broadcast(everyone)
        return named
