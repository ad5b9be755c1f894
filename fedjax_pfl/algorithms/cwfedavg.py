"""Regularizing and Aggregating Clients with Class Distribution for Personalized Federated Learning.

Gyuejeong Lee, Daeyoung Choi. 2024. https://arxiv.org/abs/2406.07800v1
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, mixing, training, trees
from fedjax_pfl.aggregation import products


@core.struct
class State:
    models: core.Stack = core.per_client()
    # [N, C], of the last uploads; only with "norms"
    shares: core.PerClient | None = core.per_client()
    classes: core.Stack | None = core.per_server()  # [C, ...]; only with score_class_models
    # bool: has sent its labels' shares; only with "labels"
    informed: core.PerClient | None = core.per_client()


@core.algorithm("cwfedavg")
class CwFedAvg(core.Algorithm):
    """cwFedAVG: one global model per class, mixed by each client's class shares (Alg. 1).

    Eqs. (3)-(9). Both aggregations are one matrix, W = P Q^T. P [N, C] holds the clients' class
    shares; Q_kj = p_k P_kj / sum_k p_k P_kj is the part of client k in the model of class j. Where
    there are fewer classes than clients, the two are applied one after the other: the class models
    are Q^T times the trained models.

    Clients that did not take part are also re-initialized from the class models, as the published
    code does for all clients. Each is weighed by the class shares of the classifier that it
    uploaded last (before its first upload, of the initial one), and receives the new model when it
    next takes part.

    Attributes:
      wdr_weight: lambda of the weight distribution regularizer; 0 is "without WDR". The paper's
        values are lost except 10 on CIFAR-10, the published default. To add the regularizer to
        other algorithms, use the federation's `extra_loss`; both at once are refused.
      shares: class shares P of a client: "norms" of its classifier's columns (eq. 9), or its true
        "labels" ("with Dist.", which sends C numbers once).
      score_class_models: make the C class models, eqs. (3)-(5), in every round, and score each
        for every client, as "class_0", "class_1", ... A class of which no
        client has a share keeps its last model.
    """

    aggregator_replaces = "mean"  # of each class
    absent_kept = False  # every client is re-initialized in each round
    needs_classes = True

    wdr_weight: float = core.number(default=10.0, allowed="at least 0")
    shares: Literal["norms", "labels"] = core.static(default="norms")
    score_class_models: bool = core.static(default=False)

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def also_sent(self) -> tuple[str, ...]:
        return ("the shares of its classes",) if self.shares == "labels" else ()

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def unprotected(self) -> tuple[str, ...]:
        return ("the class counts of its regularizer",) if self.wdr_weight else ()

    def check(self, federation):
        if self.wdr_weight != 0 and isinstance(
            federation.training.extra_loss, training.WeightDistribution
        ):
            raise core.InputError(
                f"cwfedavg has a wdr_weight of its own, {self.wdr_weight}, and the federation adds "
                "that regularizer to every algorithm: set one of the two to 0."
            )
        params = federation.model_shapes["params"]
        training.classifier_kernel(params, federation.plan, federation.data.num_classes)
        plan = federation.plan
        if self.shares == "norms" and not plan.shared_blocks[plan.blocks.index(plan.head)]:
            raise core.InputError(
                f"cwfedavg reads class shares off uploaded classifiers, and {plan.head!r} stays "
                "with its clients: give shares=labels."
            )

    def init(self, ctx):
        model = ctx.initial_model()
        classes = trees.replicate(model, ctx.federation.data.num_classes)
        informed = jnp.zeros((ctx.num_clients,), bool) if self.shares == "labels" else None
        shares = None if self.shares == "labels" else ctx.replicate(self.norm_shares(ctx, model))
        classes = classes if self.score_class_models else None
        return State(ctx.replicate(model), shares, classes, informed)

    def round(self, ctx, state):
        wdr = training.WeightDistribution(self.wdr_weight)

        def regularizer(params, batch, broadcast, client):
            return wdr(params, batch, client, ctx.plan)

        received = ctx.cohort.gather(state.models)
        trained, cohort, loss = ctx.train(received, extra_loss=regularizer)
        sent = ctx.upload(trained, received, cohort=cohort)
        own = cohort.scatter(state.models, sent)
        estimate = jax.vmap(partial(self.norm_shares, ctx))(sent)  # [M, C]
        true = self.true_shares(ctx)
        # Read off the upload: a mixed model's classifier has shares of several clients.
        uploaded = None if state.shares is None else cohort.scatter(state.shares, estimate)
        shares = true if uploaded is None else uploaded  # P [N, C]
        sizes = ctx.sizes() * cohort.mask
        weights, of_sent, parts = class_weights(shares, cohort.gather(shares), sizes)
        classes = state.classes
        fewer = parts.shape[0] < cohort.size or ctx.federation.aggregator is not None
        if classes is not None or fewer:
            if classes is None:  # a placeholder for classes without senders
                classes = trees.replicate(trees.row(sent, 0), len(parts))
            classes = ctx.aggregate_rows(parts, sent, onto=classes)  # eqs. (3)-(5)
            models = ctx.mix(of_sent, classes, onto=own)  # eq. (7)
        else:
            models = ctx.mix(weights, sent, onto=own)
        gap = jnp.linalg.norm(estimate - cohort.gather(true), axis=1)
        informed, numbers = state.informed, None
        if informed is not None:  # C numbers when it first takes part
            numbers = shares.shape[1] * (ctx.cohort.mask & ~cohort.gather(informed))
            informed = cohort.scatter(informed, ctx.cohort.mask, where=ctx.cohort.mask)
        classes = classes if self.score_class_models else None
        return State(models, uploaded, classes, informed), ctx.record(
            cohort,
            numbers_up=numbers,
            clients={"train_loss": loss, "class_share_error": gap},
            everyone_mixes=True,
            mixing=weights,
        )

    @staticmethod
    def norm_shares(ctx, model):
        """Return eq. (9), the shares [C] of the classifier's columns."""
        return training.estimated_class_shares(
            model["params"], ctx.plan, ctx.federation.data.num_classes
        )

    @staticmethod
    def true_shares(ctx):
        """Return each client's class frequencies, [N, C]."""
        return mixing.normalize(ctx.federation.data.class_counts.astype(ctx.dtype))

    def models(self, ctx, state, rows):
        named = {"personalized": trees.take(state.models, rows)}
        for c in range(ctx.federation.data.num_classes if self.score_class_models else 0):
            named[f"class_{c}"] = core.Broadcast(trees.row(state.classes, c))
        return named


def class_weights(shares, sent, sizes):
    """Return (W [N, M], P [N, C], Q^T [C, M]) from the shares of receivers and senders.

    Senders have shares [M, C] and sizes n [M]. Classes without a sender have no weight.
    """
    parts = mixing.normalize((sizes[:, None] * sent).T)
    of_sent = mixing.normalize(shares, jnp.any(parts != 0, axis=1))
    return products.matmul(of_sent, parts), of_sent, parts
