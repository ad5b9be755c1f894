"""FedAS: Bridging Inconsistency in Personalized Federated Learning.

Xiyuan Yang, Wenke Huang, Mang Ye. CVPR 2024.
https://openaccess.thecvf.com/content/CVPR2024/html/Yang_FedAS_Bridging_Inconsistency_in_Personalized_Federated_Learning_CVPR_2024_paper.html
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, trees


@core.struct
class State:
    server: Any = core.per_server()  # the shared leaves
    own: core.Stack = core.per_client()  # what each client trained last


@core.algorithm("fedas")
class FedAS(core.Algorithm):
    """FedAS: received bodies are aligned with the client's own, and averaged by Fisher information.

    A member first trains the received body for the mean features mu_c of its classes in its own
    last body, by the sum over the classes of a minibatch of the mean of |z - mu_c|^2 / d; then body
    and own head together. The server averages bodies with weights proportional to F_i, the sum over
    the minibatches of an epoch of the squared norm of the loss's gradient at the trained model. A
    client uses its trained model.

    Attributes:
      align_epochs, align_rate, align_batch: epochs, constant learning rate and batch size of the
        alignment.
    """

    share = "body"
    batch_norm = "shared"
    server_needs = "sums"
    aggregator_replaces = "mean"
    needs_classes = True
    unprotected = ("the mean features of its classes", "the Fisher information of its model")

    align_epochs: int = core.static(default=1, allowed="at least 0")
    align_rate: float = core.number(default=0.01, allowed="above 0")
    align_batch: int = core.static(default=16, allowed="at least 1")

    def check(self, federation):
        core.require_features(self, federation)
        if getattr(federation.uploads, "uniform", False):
            raise core.InputError(
                "fedas weighs members by the Fisher information that they send, and secure_bits "
                "and dp_placement='distributed' give them equal weights: leave these out."
            )
        if len(federation.plan.layers) == 1:
            raise core.InputError("fedas aligns bodies, and this network is only a head.")

    def init(self, ctx):
        model = ctx.initial_model()
        return State(ctx.plan.split(model)[0], ctx.replicate(model))

    def round(self, ctx, state):
        own = ctx.cohort.gather(state.own)
        received = trees.assemble(state.server, ctx.plan.split(own)[1])
        aligned, cohort = self.align(ctx, received, own)
        trained = ctx.train(aligned, cohort)
        fisher, cohort = self.fisher(ctx, trained.models, trained.cohort)

        held = core.Broadcast(state.server)
        sent = ctx.upload(trained.models, held, cohort=cohort)
        fisher = ctx.upload(fisher, jnp.zeros_like(fisher), "fisher", cohort, compressed=False)
        weights = mixing.normalize(jnp.maximum(fisher, 0).astype(ctx.dtype))  # noise
        server = ctx.aggregate(weights, ctx.plan.split(sent)[0], onto=state.server)
        return State(server, cohort.scatter(state.own, trained.models)), ctx.record(
            cohort,
            numbers_up=1,
            clients={"train_loss": trained.loss},
            mixing=weights,
        )

    def align(self, ctx, received, own) -> tuple[core.Stack, core.Cohort]:
        """Train the received bodies for the class means in the members' own bodies."""
        if not self.align_epochs:
            return received, ctx.cohort
        sums, cohort = ctx.class_sums(own)
        classes, task = jnp.arange(sums.counts.shape[1]), ctx.federation.task

        def forward_pass(model, batch, rng, broadcast, client):
            forward = task.forward(model, batch, rng)
            z = forward.batch.features
            away = jnp.mean(jnp.square(z - client.operand[batch.labels].astype(z.dtype)), axis=1)
            count = jnp.sum((batch.labels == classes[:, None]) & batch.valid, axis=1)
            share = jnp.where(batch.valid, 1 / jnp.maximum(count, 1)[batch.labels], 0)
            return forward._replace(loss=jnp.sum(share.astype(away.dtype) * away))

        body = jax.tree.map(lambda on: not on, ctx.plan.head_mask(received)["params"])
        schedule = replace(
            ctx.federation.schedule,
            epochs=self.align_epochs,
            steps=None,
            batch_size=self.align_batch,
            drop_last=False,
        )
        models, cohort, _ = ctx.train(
            received, cohort, purpose="align", schedule=schedule,
            learning_rate=jnp.asarray(self.align_rate, ctx.dtype), forward=forward_pass,
            operands=sums.means, trainable=body,
        )  # fmt: skip
        return models, cohort

    def fisher(self, ctx, models, cohort) -> tuple[jax.Array, core.Cohort]:
        """Return (F_i, [M], the cohort with the steps of that pass)."""
        task = ctx.federation.task

        def see(total, batch, rng, broadcast, client):
            def loss(params):
                return task.loss({**client.operand, "params": params}, batch, train=False)[0]

            slope = jax.grad(loss)(client.operand["params"])
            return total + sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(slope))

        total, finite, steps = ctx.run_clients(
            see, core.Broadcast(jnp.zeros((), jnp.promote_types(ctx.dtype, "float32"))),
            purpose="fisher", schedule=ctx.federation.schedule.one_pass(), operands=models,
            active=cohort.mask, cursor=None,
        )  # fmt: skip
        return total, cohort.mark_diverged(finite, steps)

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.own, rows)}

    def new_client_start(self, ctx, state):
        mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0).astype(leaf.dtype), state.own)
        return trees.join(state.server, ctx.plan.split(mean)[1])
