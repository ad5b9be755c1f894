"""Adaptive Personalized Federated Learning.

Yuyang Deng, Mohammad Mahdi Kamani, Mehrdad Mahdavi. 2020. https://arxiv.org/abs/2003.13461
"""

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, trees
from fedjax_pfl.aggregation.pairs import Pair, blend, parts
from fedjax_pfl.algorithms import fedavg

ALPHA_DECAY = 0.02  # of the published code, only for the form "logits"


@core.struct
class State(fedavg.State):
    own: Any = core.per_client()  # v_i
    alphas: Any = core.per_client()  # [N]


@core.struct
class Both(core.Trained):
    """The results of local training: the uploads w_i, and the values that stay with the client.

    Attributes:
      own: v_i, [M, ...].
      alphas: [M].
    """

    own: Any = None
    alphas: Any = None


@core.algorithm("apfl")
class Apfl(fedavg.Weighted):
    """APFL: each client mixes the server's model with its own, alpha_i v_i + (1 - alpha_i) w.

    On each minibatch b, all from the values before it, with m = alpha v + (1 - alpha) w:

      w <- w - eta grad f_b(w)                  sent, and averaged as by FedAvg
      v <- v - eta alpha grad f_b(m)            kept
      alpha <- alpha - eta <v - w, grad f_b(m)>, clipped to [0, 1]

    The personalized model is the mixture with the server's new w. Running statistics of
    normalization layers are mixed as parameters are.

    Attributes:
      alpha: every client's first alpha_i.
      adapt_alpha: when alpha_i moves: at the "first_step" of a round (the paper), in its
        "first_epoch", at "every_step", or "never".
      form: "parameters" are mixed (the paper), or "logits" (the published code). There w steps
        first; v steps on the loss of alpha f(v) + (1 - alpha) f(w), and alpha moves along
        <v - w, alpha grad_v + (1 - alpha) grad_w> + 0.02 alpha of that loss, with the new v and w.
      weighting: the server's mean by "size", or "uniform" (the published code).
    """

    alpha: float = core.number(default=0.5, allowed="in [0, 1]")
    adapt_alpha: Literal["first_step", "first_epoch", "every_step", "never"] = core.static(
        default="first_step"
    )
    form: Literal["parameters", "logits"] = core.static(default="parameters")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def check(self, federation):
        core.require_whole_models(self, federation)
        if self.form == "logits" and federation.training.extra_loss is not None:
            raise core.InputError(
                "apfl with form='logits' has one loss of two models, which the federation's "
                "extra_loss does not know: leave that out, or take form='parameters'."
            )

    def prepare(self, federation):
        if self.form == "logits":
            federation = federation.with_mixtures()
        return super().prepare(federation)

    def init(self, ctx):
        own = ctx.replicate(ctx.initial_model())
        return State(**vars(super().init(ctx)), own=own, alphas=self.first_alphas(ctx))

    def first_alphas(self, ctx):
        return jnp.broadcast_to(jnp.asarray(self.alpha, ctx.dtype), (ctx.num_clients,))

    def local_update(self, ctx, state: State, received):
        if isinstance(received, core.Broadcast):
            received = trees.replicate(received.model, ctx.cohort.size)
        own, alphas = ctx.cohort.gather((state.own, state.alphas))
        return self.train_both(ctx, received, own, alphas)

    def train_both(self, ctx, shared, own, alphas):
        """Run the cohort's local steps from w_i and v_i [M, ...] and alpha_i [M]."""
        cohort, sgd, schedule = ctx.cohort, ctx.sgd_step(), ctx.federation.schedule
        step_on = {"parameters": on_parameters, "logits": on_logits}[self.form]

        def step(carry, batch, rng, broadcast, client):
            w, v, alpha = carry
            w, v, slope = step_on(sgd, w, v, alpha, (batch, rng, broadcast, client))
            if self.adapt_alpha == "never":
                return w, v, alpha
            moving = {
                "first_step": 1,
                "first_epoch": jnp.maximum(schedule.steps_per_epoch(client.size), 1),
                "every_step": client.num_steps,
            }[self.adapt_alpha]

            def move():
                return jnp.clip(alpha - ctx.learning_rate * slope(), 0, 1)

            # A branch: the slope is a pass over all parameters, and most steps do not need it.
            return w, v, jax.lax.cond(client.step < moving, move, lambda: alpha)

        def finish(carry, client):
            w, v, alpha = carry
            return w.model, v.model, alpha, w.loss / jnp.maximum(client.num_steps, 1)

        begin = sgd.begin_all(shared), sgd.begin_all(own), alphas
        active = None if cohort.complete else cohort.mask
        runs = ctx.run_clients(step, begin, active=active, finish=finish)
        shared, own, alphas, loss = runs.carry
        cohort = cohort.mark_diverged(runs.finite, self._passes * runs.steps)
        return Both(shared, cohort, loss, own=own, alphas=alphas)

    @property
    def _passes(self) -> int:
        """Backward passes of a local step, each as large as that of one model."""
        return 3 if self.form == "logits" and self.adapt_alpha != "never" else 2

    def server_update(self, ctx, state: State, mean, weights, used: Both):
        after = super().server_update(ctx, state, mean, weights, used)
        fields = used.cohort.scatter((state.own, state.alphas), (used.own, used.alphas))
        return replace(after, own=fields[0], alphas=fields[1])

    def record(self, ctx, trained, weights, **noted):
        return super().record(ctx, trained, weights, alpha=trained.alphas, **noted)

    def models(self, ctx, state: State, rows):
        named = super().models(ctx, state, rows)
        shared = named["personalized"]  # as received
        if isinstance(shared, core.Broadcast):
            shared = trees.replicate(shared.model, rows.shape[0])
        own = trees.take(state.own, rows)
        return {**named, "personalized": self.mixture(own, shared, state.alphas[rows])}

    def mixture(self, own, shared, alphas):
        """Return the mixtures of v_i and w_i [k, ...] with alpha_i [k]."""
        if self.form == "logits":
            return Pair(own, shared, alphas).model()
        return jax.vmap(blend)(own, shared, alphas)

    def new_client_start(self, ctx, state):
        return self.servers_model(state)

    def personalize(self, ctx, state, new_clients):
        """Return the mixtures for new clients after one round of local training from v_i = w."""
        start = new_clients.replicate(self.new_client_start(ctx, state))
        sent = self.train_both(new_clients, start, start, self.first_alphas(new_clients))
        return self.mixture(sent.own, start, sent.alphas)


def on_parameters(sgd, w, v, alpha, at):
    """Return (w, v, a function of the slope of alpha) after a step; all use the values before it.

    `at` is (batch, rng, broadcast, client).
    """
    result = sgd.loss_and_gradient(blend(v.model, w.model, alpha), *at)

    def slope():
        apart = optax.tree.sub(v.model["params"], w.model["params"])
        return optax.tree.vdot(apart, result.gradient)

    along = result._replace(gradient=optax.tree.scale(alpha, result.gradient))
    return sgd(w, *at), sgd.update(v, along), slope


def on_logits(sgd, w, v, alpha, at):
    """Return the same in the order of the published code: w steps first, and v uses the new w."""
    w = sgd(w, *at)
    result = sgd.loss_and_gradient(Pair(v.model, w.model, alpha).model(), *at)
    own, shared, _ = parts({**result.statistics, "params": result.gradient})
    by_own, by_shared = own.pop("params"), shared["params"]
    v = sgd.update(v, result._replace(gradient=by_own, statistics=own))

    def slope():
        apart = optax.tree.sub(v.model["params"], w.model["params"])
        return optax.tree.vdot(apart, blend(by_own, by_shared, alpha)) + ALPHA_DECAY * alpha

    return w, v, slope
