"""Personalized Federated Learning via Domain Adaptation with an Application to Distributed 3D Printing.

Naichen Shi, Raed Al Kontar. Technometrics 2023. https://doi.org/10.1080/00401706.2022.2157882
"""  # noqa: E501 - the title

from dataclasses import replace
from typing import Any

from fedjax_pfl import core, training, trees
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.shared_heads import check_only_head_shared


@core.struct
class State(fedavg.State):
    heads: Any = core.per_client()  # h_i, each client's own head


@core.struct
class Both(core.Trained):
    """The results of local training: bodies under the shared head, and own heads.

    Attributes:
      heads: h_i, [M, ...].
    """

    heads: Any = None


@core.algorithm("pfl_da")
class PflDa(fedavg.FedAvg):
    """PFL-DA: private bodies that map each client's domain to the features of a shared head.

    A round of client i trains its own head h_i on its frozen body, pulled to the received shared
    head G by (lambda / 2) |h_i - G|^2; then body and G together by the loss of G. The server
    averages G. A client uses its body and h_i. Both heads of a client have the same body, and all
    begin at the common initial model.

    Attributes:
      proximal_weight: lambda.
    """

    share = "head"

    proximal_weight: float = 1.0

    def validate(self):
        core.require(
            self.proximal_weight >= 0, "proximal_weight", self.proximal_weight, "at least 0"
        )

    def check(self, federation):
        check_only_head_shared(self.name, federation)

    def schedules(self, federation):
        return federation.schedule, federation.schedule

    def init(self, ctx):
        start = super().init(ctx)
        return State(**vars(start), heads=ctx.replicate(start.server))

    def local_update(self, ctx, state: State, received, **options):
        rows = ctx.cohort.rows
        models = trees.join(trees.take(state.heads, rows), trees.take(state.private, rows))
        trainable = ctx.plan.head_mask(models)["params"]
        models, cohort, first = ctx.train(
            models,
            purpose="head",
            trainable=trainable,
            extra_loss=training.proximal(self.proximal_weight),
            broadcast=state.server["params"],
            **options,
        )
        heads, _ = ctx.plan.split(models)
        sent = super().local_update(ctx, state, received, cohort=cohort, **options)
        loss = (first + sent.loss) / 2
        return Both(sent.models, sent.cohort, loss, heads=heads)

    def server_update(self, ctx, state: State, mean, weights, used: Both):
        after = super().server_update(ctx, state, mean, weights, used)
        return replace(after, heads=used.cohort.scatter(state.heads, used.heads))

    def models(self, ctx, state: State, rows):
        own = trees.join(trees.take(state.heads, rows), trees.take(state.private, rows))
        return {"personalized": own, "shared_head": self.received(state, rows)}

    def personalize(self, ctx, state: State, new_clients):
        """Train a body and a head for new clients by one round, from the clients' mean bodies."""
        start = self.servers_model(state)
        new = replace(new_clients, cohort=new_clients.cohort_of())
        shared, private = new.plan.split(start)
        begun = replace(state, private=new.replicate(private), heads=new.replicate(shared))
        sent = self.local_update(new, begun, new.replicate(start), cursor=None)
        _, bodies = new.plan.split(sent.models)
        return trees.join(sent.heads, bodies)
