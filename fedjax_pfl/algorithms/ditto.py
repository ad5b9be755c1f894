"""Ditto: Fair and Robust Federated Learning Through Personalization.

Tian Li, Shengyuan Hu, Ahmad Beirami, Virginia Smith. ICML 2021. https://arxiv.org/abs/2012.04221
"""

from dataclasses import replace
from typing import Any, Literal

from fedjax_pfl import core
from fedjax_pfl.algorithms.common.own_models import OwnModels, State


@core.struct
class Both(core.Trained):
    """The results of local training: the uploads, and the personal models.

    Attributes:
      own: v_i, [M, ...].
    """

    own: Any = None


@core.algorithm("ditto")
class Ditto(OwnModels):
    """FedAvg and personal models v that are pulled to w: v <- v - eta (g(v) + lambda (v - w)).

    Algorithm 1. w is the model that the server sent in this round, before local training and
    aggregation. All v_i begin at the common initial model. The server's model does not depend on
    lambda. The pull applies to shared parameters only. A client either of whose models diverges
    counts as diverged: its upload is not used, and its personal model stays as it was.

    Attributes:
      proximal_weight: lambda; 1 in the authors' scripts. Its tables tune over 0.05, 0.1, 1 and 2.
      personal_epochs: local epochs of v_i; 0: the same epochs, or steps, as those of w.
      batches: "own", minibatches of v_i's own; or "shared", those on which w trains, as in the
        authors' code: each minibatch serves both models.
      weighting: of the average, by "size", or "uniform" as in the authors' code.
    """

    proximal_weight: float = core.number(default=1.0, allowed="at least 0")
    personal_epochs: int = core.static(default=0, allowed="at least 0", needs="batches='own'")
    batches: Literal["own", "shared"] = core.static(default="own")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def remarks(self, federation):
        notes = "proximal_weight is 0: what is scored was trained locally"
        return [*super().remarks(federation), *[notes] * (not self.proximal_weight)]

    def personal_schedule(self, federation):
        """Return the schedule of v_i."""
        if not self.personal_epochs:
            return federation.schedule
        return replace(federation.schedule, epochs=self.personal_epochs, steps=None)

    def local_update(self, ctx, state: State, received):
        trained = super().local_update(ctx, state, received)
        own, cohort, _ = ctx.train(
            ctx.cohort.gather(state.own),
            trained.cohort,
            purpose="train" if self.batches == "shared" else "personal",
            same_minibatches=self.batches == "shared",
            schedule=self.personal_schedule(ctx.federation),
            **self.near(state),
        )
        return Both(trained.models, cohort, trained.loss, own=own)

    def server_update(self, ctx, state: State, mean, weights, used: Both):
        after = super().server_update(ctx, state, mean, weights, used)
        return replace(after, own=used.cohort.scatter(state.own, used.own))
