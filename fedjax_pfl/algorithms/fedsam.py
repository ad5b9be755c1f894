"""Improving Generalization in Federated Learning by Seeking Flat Minima.

Debora Caldarola, Barbara Caputo, Marco Ciccone. ECCV 2022. https://arxiv.org/abs/2203.11834

MoFedSAM: Zhe Qu, Xingyu Li, Rui Duan, Yao Liu, Bo Tang, Zhuo Lu. ICML 2022.
https://arxiv.org/abs/2206.02618
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, mixing, trees
from fedjax_pfl.algorithms import fedavg


@core.struct
class State(fedavg.State):
    direction: Any = core.per_server()  # D, like the parameters; None without global_momentum


@core.algorithm("fedsam")
class FedSAM(fedavg.FedAvg):
    """FedAvg whose clients take steps of sharpness-aware minimization (SAM).

    A local step goes along the gradient at y + rho g / |g|, where g is that at y on the same
    minibatch. Its statistics of normalization layers are those of the pass at y.

    With `adaptive`, entries of kernels are perturbed in proportion to their size (ASAM):
    e = rho t^2 g / |t g| with t = |y| + eta, and t = 1 for biases. With `global_momentum`
    (MoFedSAM) a local step goes along beta g' + (1 - beta) D, where g' is that gradient and
    D = (w_before - w_after) / (learning rate * mean local steps) is of the last round; the server
    sends it with w.

    Attributes:
      rho: length of the perturbation; 0 is FedAvg, at twice its cost.
      adaptive: scale the perturbation by the parameters.
      eta: added to their absolute values; only with `adaptive`.
      global_momentum: mix the server's last direction into local steps.
      beta: weight of the client's own gradient; only with `global_momentum`.
    """

    rho: float = core.number(default=0.1, allowed="at least 0")
    adaptive: bool = core.static(default=False)
    eta: float = core.number(default=0.2, allowed="at least 0", needs="adaptive=True")
    global_momentum: bool = core.static(default=False)
    beta: float = core.number(default=0.1, allowed="in (0, 1]", needs="global_momentum=True")

    def check(self, federation):
        if not self.global_momentum:
            return
        core.require_whole_models(self, federation)
        if getattr(federation.uploads, "noise_of_sums", False):
            raise core.InputError(
                "fedsam's global_momentum divides by the members' mean number of steps, which "
                "dp_placement='distributed' keeps private: leave global_momentum out."
            )

    def remarks(self, federation):
        off = ["rho is 0: trained as FedAvg"] if not self.rho and not self.global_momentum else []
        if self.adaptive and self.rho == FedSAM.rho:
            off = [f"rho is {self.rho}, FedSAM's: the authors' FedASAM has 0.7"]
        return [*super().remarks(federation), *off]

    def init(self, ctx):
        start = super().init(ctx)
        zero = (
            jax.tree.map(jnp.zeros_like, start.server["params"]) if self.global_momentum else None
        )
        return State(**vars(start), direction=zero)

    def local_update(self, ctx, state: State, received):
        cohort, sgd, plan = ctx.cohort, ctx.sgd_step(), ctx.plan

        def step(local, batch, rng, direction, client):
            first = sgd.loss_and_gradient(local.model, batch, rng, None, client)
            moves = jax.tree.map(lambda stays: not stays, plan.frozen_mask(local.model)["params"])
            trial = self.perturbed(local.model["params"], first.gradient, moves)
            noise = jax.random.fold_in(rng, 1)
            second = sgd.loss_and_gradient(
                {**local.model, "params": trial}, batch, noise, None, client
            )
            gradient = second.gradient
            if self.global_momentum:
                gradient = jax.tree.map(
                    lambda g, d: self.beta * g + (1 - self.beta) * d, gradient, direction
                )
            return sgd.update(local, first._replace(gradient=gradient))

        def finish(local, client):
            return local.model, local.loss / jnp.maximum(client.num_steps, 1)

        runs = ctx.run_clients(
            step, sgd.begin_all(received), broadcast=state.direction, finish=finish,
            active=None if cohort.complete else cohort.mask,
        )  # fmt: skip
        models, loss = runs.carry
        return core.Trained(models, cohort.mark_diverged(runs.finite, 2 * runs.steps), loss)

    def perturbed(self, params, gradient, moves):
        """Return the parameters at which the step's gradient is taken."""

        def scale(path, leaf):
            biased = trees.path_name(path).endswith("bias")
            return jnp.ones_like(leaf) if biased or not self.adaptive else jnp.abs(leaf) + self.eta

        scales = jax.tree_util.tree_map_with_path(scale, params)
        gradient = jax.tree.map(lambda g, on: g if on else jnp.zeros_like(g), gradient, moves)
        scaled = jax.tree.map(jnp.multiply, scales, gradient)
        factor = mixing.ratio(jnp.asarray(self.rho), optax.tree.norm(scaled))
        return jax.tree.map(
            lambda w, t, g: w + (factor * t * g).astype(w.dtype), params, scales, scaled
        )

    def server_update(self, ctx, state: State, mean, weights, used):
        if self.global_momentum:
            steps = jnp.sum(weights * used.cohort.steps) / 2
            path = ctx.learning_rate * steps
            direction = jax.tree.map(
                lambda w, m, d: jnp.where(path > 0, mixing.ratio(w - m, path), d).astype(d.dtype),
                state.server["params"],
                mean["params"],
                state.direction,
            )
            state = replace(state, direction=direction)
        return super().server_update(ctx, state, mean, weights, used)

    def record(self, ctx, trained, weights, **noted):
        return super().record(ctx, trained, weights, down=2 if self.global_momentum else 1, **noted)

    def personalize(self, ctx, state, new_clients):
        """Train one round of local steps from the server's model."""
        begin = core.Broadcast(self.new_client_start(ctx, state))
        return self.local_update(new_clients, state, begin).models
