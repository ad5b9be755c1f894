"""FedGH: Heterogeneous Federated Learning with Generalized Global Header.

Liping Yi, Gang Wang, Xiaoguang Liu, Zhuan Shi, Han Yu. ACM MM 2023.
https://arxiv.org/abs/2303.13137
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core, training, trees
from fedjax_pfl.algorithms.common.head_checks import check_only_head_shared


@core.struct
class State:
    head: Any = core.per_server()
    bodies: Any = core.per_client()


@core.algorithm("fedgh")
class FedGH(core.Algorithm):
    """FedGH: private bodies under a head that the server trains on mean features of classes.

    Members train their body and the received head together, and send the mean features of each of
    their classes in the trained body. The server takes SGD steps on the cross-entropy of its head
    for these means and their classes, in a random order. A client uses its body and that head.

    Attributes:
      server_rate: learning rate of the server.
      server_epochs: passes over the means in a round.
      server_batch: means in a step.
    """

    share = "head"
    needs_classes = True
    unprotected = ("the mean features of its classes",)

    server_rate: float = core.number(default=0.01, allowed="at least 0")
    server_epochs: int = core.static(default=1, allowed="at least 1")
    server_batch: int = core.static(default=1, allowed="at least 1")

    def check(self, federation):
        check_only_head_shared(self.name, federation)
        core.require_features(self, federation)

    def init(self, ctx):
        head, body = ctx.plan.split(ctx.initial_model())
        return State(head, ctx.replicate(body))

    def round(self, ctx, state):
        received = trees.assemble(state.head, ctx.cohort.gather(state.bodies))
        trained = ctx.train(received)
        sums, cohort = ctx.class_sums(trained.models, trained.cohort)
        _, bodies = ctx.plan.split(trained.models)
        none = jax.tree.map(jnp.zeros_like, sums)
        sums = ctx.upload(sums, none, "class_sums", cohort, compressed=False)
        width, held = sums.totals.shape[-1], jnp.sum(sums.counts > 0, axis=1)
        head = self.train_head(ctx, state.head, trees.row(bodies, 0), sums)
        return State(head, cohort.scatter(state.bodies, bodies)), ctx.record(
            cohort, up=0, numbers_up=width * held, clients={"train_loss": trained.loss}
        )

    def train_head(self, ctx, head, body, sums: training.ClassSums) -> core.Tree:
        """Return the server's head after its steps on the members' class means.

        `body` is any client's; it completes the model whose head is used.
        """
        task = ctx.federation.task
        members, classes = sums.counts.shape
        extra = -members * classes % self.server_batch
        means = sums.means.astype(ctx.dtype).reshape(members * classes, -1)
        means = jnp.pad(means, ((0, extra), (0, 0)))
        there = jnp.pad((sums.counts > 0).reshape(-1), (0, extra))

        def step(head, chosen):
            def loss(params):
                z = means[chosen]
                model = trees.join({**head, "params": params}, body)
                logits = task.computed(task.classify, model, z)
                batch = training.ForwardedBatch(z, chosen % classes, there[chosen], logits, z)
                return task.mean_loss(logits, batch)

            slope = jax.grad(loss)(head["params"])
            moved = jax.tree.map(
                lambda w, g: w - (self.server_rate * g).astype(w.dtype), head["params"], slope
            )
            return {**head, "params": moved}, None

        def turns(i):  # a random order of a client's classes, drawn by its id
            key = jax.random.fold_in(ctx.key_for("server"), i)
            return jax.random.uniform(key, (self.server_epochs, classes), jnp.float32)

        drawn = jax.vmap(turns, out_axes=1)(ctx.cohort.ids).reshape(self.server_epochs, -1)
        drawn = jnp.pad(drawn, ((0, 0), (0, extra)))
        order = jnp.argsort(jnp.where(there, drawn, 1), axis=1)  # the means that exist come first
        return jax.lax.scan(step, head, order.reshape(-1, self.server_batch))[0]

    def models(self, ctx, state, rows):
        return {"personalized": trees.assemble(state.head, trees.take(state.bodies, rows))}

    def personalize(self, ctx, state, new_clients):
        """Train bodies for new clients by one round, from the mean of all bodies."""
        own = super().personalize(ctx, state, new_clients)
        _, bodies = new_clients.plan.split(own)
        return trees.assemble(state.head, bodies)
