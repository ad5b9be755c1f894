"""On Privacy and Personalization in Cross-Silo Federated Learning.

Ziyu Liu, Shengyuan Hu, Zhiwei Steven Wu, Virginia Smith. NeurIPS 2022.
https://arxiv.org/abs/2206.07902
"""

from dataclasses import replace
from typing import Literal

from fedjax_pfl import core
from fedjax_pfl.algorithms.common.own_models import OwnModels, State


@core.algorithm("mrmtl")
class MrMtl(OwnModels):
    """Mean-regularized multi-task learning: own models w_i that are pulled to their mean w.

    w_i <- w_i - eta (g(w_i) + lambda (w_i - w)), and the server's w is the mean of the members' w_i
    after training. A client goes on from its own model, never from w. Under sample-level
    differential privacy all of its steps serve the one model that it uses, where Ditto spends half
    of them on the server's.

    w is the model that the server sent in this round. All w_i begin at the common initial model.
    The pull applies to shared parameters only.

    Attributes:
      proximal_weight: lambda; 0 is local training. The authors tune it for each data set and
        epsilon.
      weighting: of the mean, by "size" (the authors' code), or "uniform".
    """

    proximal_weight: float = core.number(default=1.0, allowed="at least 0")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def remarks(self, federation):
        return [
            *super().remarks(federation),
            *["proximal_weight is 0: trained locally"] * (not self.proximal_weight),
        ]

    def local_update(self, ctx, state: State, received):
        own = ctx.cohort.gather(state.own)
        return super().local_update(ctx, state, own, **self.near(state))

    def server_update(self, ctx, state: State, mean, weights, used):
        after = super().server_update(ctx, state, mean, weights, used)
        return replace(after, own=used.cohort.scatter(state.own, used.models))
