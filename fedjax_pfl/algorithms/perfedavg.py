"""Personalized Federated Learning: A Meta-Learning Approach.

Alireza Fallah, Aryan Mokhtari, Asuman Ozdaglar. NeurIPS 2020. https://arxiv.org/abs/2002.07948

At NeurIPS it is called "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach".
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl import core, training
from fedjax_pfl.algorithms.fedavg import Weighted


@core.algorithm("perfedavg")
class PerFedAvg(Weighted):
    """Per-FedAvg: FedAvg of an initial model from which one local step personalizes.

    A local step takes two minibatches, or three, of a client's samples:

      g_2 = grad f_b2(w - alpha grad f_b1(w))          at the end of a trial step
      w <- w - beta g_2                                "first_order"
      w <- w - beta (g_2 - alpha H_b3(w) g_2)          "hessian_free", H the Hessian

    alpha is `inner_factor` times the local learning rate of the round, beta that rate itself. The
    trial step is plain SGD; the second one is the local optimizer's. Clients with one sample do
    not train. The personalized model is a copy of w after one step at rate alpha on one minibatch.

    Attributes:
      variant: "first_order" (FO), or "hessian_free" (HF), which differentiates through the trial
        step.
      product: H g_2 of "hessian_free" "exact", or by "differences" of gradients at w +- delta g_2
        (the paper's HF).
      delta: of the differences.
      inner_factor: alpha / beta.
      passes: factor on the federation's local epochs, as a step takes more than one minibatch. It
        has no effect on local steps.
      weighting: the server's mean by "size", or "uniform" (the paper).
    """

    variant: Literal["first_order", "hessian_free"] = core.static(default="first_order")
    product: Literal["exact", "differences"] = core.static(
        default="exact", needs="variant='hessian_free'"
    )
    delta: float = core.number(default=1e-3, allowed="above 0", needs="product='differences'")
    inner_factor: float = core.number(default=1.0, allowed="at least 0")
    passes: int = core.static(default=2, allowed="at least 1")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def unprotected(self) -> tuple[str, ...]:
        return ("products with the Hessian",) if self.variant == "hessian_free" else ()

    def remarks(self, federation):
        useless = federation.schedule.steps is not None and self.passes != PerFedAvg.passes
        return [*super().remarks(federation), *["passes has no effect on local steps"] * useless]

    def check(self, federation):
        if any(federation.plan.frozen):
            raise core.InputError(
                "perfedavg takes its trial steps with all leaves, and some are frozen."
            )

    def schedule(self, federation):
        """Return the local schedule: two or three minibatches per step."""
        local, count = federation.schedule, 2 if self.variant == "first_order" else 3
        return replace(local, epochs=self.passes * local.epochs, batches_per_step=count)

    def has_step(self, federation):
        sizes = np.asarray(federation.data.train.size).astype(np.int64)
        return (self.schedule(federation).total_steps(sizes) > 0) & (sizes > 1)

    def adaptation(self):
        return training.Adaptation(steps=1, rate_factor=self.inner_factor, optimizer=training.SGD())

    def local_update(self, ctx, state, received):
        cohort, sgd, alpha = ctx.cohort, ctx.sgd_step(), self.inner_factor * ctx.learning_rate

        def step(local, batches, rng, broadcast, client):
            def gradient_at(params, m):
                """Return loss and gradient on minibatch m, with a random key of its own."""
                model, noise = {**local.model, "params": params}, jax.random.fold_in(rng, m)
                return sgd.loss_and_gradient(model, batches[m], noise, broadcast, client)

            w = local.model["params"]
            first = gradient_at(w, 0)
            second = gradient_at(optax.tree.add_scale(w, -alpha, first.gradient), 1)
            meta = second.gradient
            if self.variant == "hessian_free":
                bent = self.hessian_product(lambda p: gradient_at(p, 2).gradient, w, meta)
                meta = optax.tree.add_scale(meta, -alpha, bent)
            moved = sgd.update(local, second._replace(loss=first.loss, gradient=meta))
            stayed = replace(local, loss=moved.loss)  # the only sample is in the first minibatch
            some = jnp.any(batches[1].valid)
            return jax.tree.map(lambda new, old: jnp.where(some, new, old), moved, stayed)

        def finish(local, client):
            return local.model, local.loss / jnp.maximum(client.num_steps, 1)

        runs = ctx.run_clients(
            step, sgd.begin_all(received), finish=finish,
            active=None if cohort.complete else cohort.mask,
            schedule=self.schedule(ctx.federation),
        )  # fmt: skip
        models, loss = runs.carry
        gradients = 2 if self.variant == "first_order" else 4  # a Hessian product counts as two
        return core.Trained(models, cohort.mark_diverged(runs.finite, gradients * runs.steps), loss)

    def hessian_product(self, gradient, w, d):
        """Return H(w) d, where H is the Jacobian of `gradient`."""
        if self.product == "exact":
            return jax.jvp(gradient, (w,), (d,))[1]
        ahead, behind = (gradient(optax.tree.add_scale(w, s, d)) for s in (self.delta, -self.delta))
        return optax.tree.scale(0.5 / self.delta, optax.tree.sub(ahead, behind))

    def personalize(self, ctx, state, new_clients):
        """Train copies of w for new clients by the federation's local steps."""
        local, rows = new_clients.federation.schedule, np.arange(new_clients.num_clients)
        how = replace(self.adaptation(), epochs=local.epochs, steps=local.steps)
        return new_clients.adapt(core.Broadcast(self.new_client_start(ctx, state)), rows, how)
