"""Personalized Federated Learning via Domain Adaptation with an Application to Distributed 3D Printing.

Naichen Shi, Raed Al Kontar. Technometrics 2023. https://doi.org/10.1080/00401706.2022.2157882
"""  # noqa: E501 - the title

from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.aggregation.pairs import blend
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.head_checks import check_only_head_shared


@core.struct
class State(fedavg.State):
    heads: Any = core.per_client()  # h_i, each client's own head


@core.struct
class Both(core.Trained):
    """The results of local training: bodies under the generic head, and own heads.

    Attributes:
      heads: h_i, [M, ...].
    """

    heads: Any = None


@core.algorithm("pfl_da")
class PflDa(fedavg.Weighted):
    """PFL-DA: private bodies that map each client's domain to the features of a generic head.

    On each minibatch body and generic head step on the loss of the generic head; then the own head
    h_i steps on the features of the new body, which stay as they are, and is mixed with the generic
    head G as it was received, h_i <- c G + (1 - c) h_i. The server averages G. A client
    uses its body and h_i. All bodies and heads begin at the common initial model.

    Attributes:
      generic_weight: c.
      mixed: own heads are mixed after "every_step" (the printer study of the published code, and
        its image study with c = 0.99), or after the "first_step" of a round (its sine study).
      weighting: of the average, "uniform" (the published code) or by "size".
    """

    revision = 2
    share = "head"

    generic_weight: float = core.number(default=0.9, allowed="in [0, 1]")
    mixed: Literal["every_step", "first_step"] = core.static(default="every_step")
    weighting: Literal["size", "uniform"] = core.static(default="uniform")

    def check(self, federation):
        check_only_head_shared(self.name, federation)

    def remarks(self, federation):
        notes = "generic_weight is 1: own heads are generic heads of the round before"
        same = self.generic_weight == 1 and self.mixed == "every_step"
        return [*super().remarks(federation), *[notes] * same]

    def init(self, ctx):
        start = super().init(ctx)
        return State(**vars(start), heads=ctx.replicate(start.server))

    def local_update(self, ctx, state: State, received):
        heads = ctx.cohort.gather(state.heads)
        return self.train_both(ctx, heads, received, state.server)

    def train_both(self, ctx, heads, received, generic):
        """Run the cohort's local steps from own heads and models [M, ...].

        `generic` is the received generic head.
        """
        plan = ctx.plan
        own = trees.join(heads, plan.split(received)[1])
        body_step = ctx.sgd_step()
        head_step = ctx.sgd_step(trainable=plan.head_mask(own)["params"])

        def step(carry, batch, rng, generic, client):
            body, head = carry
            body = body_step(body, batch, rng, None, client)
            head = replace(head, model=plan.with_private(head.model, plan.split(body.model)[1]))
            head = head_step(head, batch, jax.random.fold_in(rng, 1), None, client)
            due = self.mixed == "every_step" or client.step == 0
            mixed, private = plan.split(head.model)
            mixed = blend(generic, mixed, jnp.where(due, self.generic_weight, 0))
            return body, replace(head, model=trees.join(mixed, private))

        def finish(carry, client):
            body, head = carry
            loss = (body.loss + head.loss) / (2 * jnp.maximum(client.num_steps, 1))
            return body.model, plan.split(head.model)[0], loss

        begin = body_step.begin_all(received), head_step.begin_all(own)
        runs = ctx.run_clients(step, begin, broadcast=generic, finish=finish)
        models, heads, loss = runs.carry
        cohort = ctx.cohort.mark_diverged(runs.finite, 2 * runs.steps)
        return Both(models, cohort, loss, heads=heads)

    def server_update(self, ctx, state: State, mean, weights, used: Both):
        after = super().server_update(ctx, state, mean, weights, used)
        return replace(after, heads=used.cohort.scatter(state.heads, used.heads))

    def models(self, ctx, state: State, rows):
        own = trees.join(trees.take(state.heads, rows), trees.take(state.private, rows))
        return {"personalized": own, "shared_head": self.received(state, rows)}

    def personalize(self, ctx, state: State, new_clients):
        """Train a body and a head for new clients by one round, from the clients' mean bodies."""
        start = new_clients.replicate(self.servers_model(state))
        heads = new_clients.replicate(state.server)
        sent = self.train_both(new_clients, heads, start, state.server)
        return trees.join(sent.heads, ctx.plan.split(sent.models)[1])
