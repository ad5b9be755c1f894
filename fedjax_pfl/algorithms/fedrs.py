"""FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data.

Xin-Chun Li, De-Chuan Zhan. KDD 2021. https://doi.org/10.1145/3447548.3467254
"""

from typing import Literal

import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms.common.class_counts import CountedLoss


@core.algorithm("fedrs")
class FedRS(CountedLoss):
    """FedRS: FedAvg whose local softmax restricts the logits of classes that the client lacks.

    The local loss is the cross-entropy of s_c f_c, with logits f and factors s_c in [alpha, 1].
    Classes that a client lacks are therefore pushed away less, and their columns of the head
    move less.

    Attributes:
      alpha: the factor of a class without samples; 1 is FedAvg.
      factors: "missing", s_c = 1 for all classes that it has (the paper); "shares", s_c = alpha +
        (1 - alpha) n_ic / max_k n_ik of the client's numbers of training samples (the
        authors' code).
    """

    alpha: float = core.number(default=0.5, allowed="in [0, 1]")
    factors: Literal["shares", "missing"] = core.static(default="missing")

    def remarks(self, federation):
        return [
            *super().remarks(federation),
            *["alpha is 1: trained as FedAvg"] * (self.alpha == 1),
        ]

    def loss(self, task, logits, batch, client):
        counts = client.class_counts
        held = counts > 0 if self.factors == "missing" else counts / jnp.maximum(counts.max(), 1)
        factors = self.alpha + (1 - self.alpha) * held
        return task.mean_loss(logits * factors.astype(logits.dtype), batch)
