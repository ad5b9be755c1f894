"""Federated Learning with Label Distribution Skew via Logits Calibration.

Jie Zhang, Zhiqi Li, Bo Li, Jianghe Xu, Shuang Wu, Shouhong Ding, Chao Wu. ICML 2022.
https://arxiv.org/abs/2209.00189
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms.common.class_counts import CountedLoss

NONE = 1e-8  # samples of a class that a client lacks


@core.algorithm("fedlc")
class FedLC(CountedLoss):
    """FedLC: FedAvg whose local softmax has larger margins for the client's rare classes.

    The local loss of a sample of class y is -log of e^{f_y - m_y} / sum_c e^{f_c - m_c}, with
    logits f and m_c = tau n_ic^{-1/4}; n_ic are the client's training samples of class c, 1e-8
    where it has none, so that such a class leaves the softmax.

    Attributes:
      tau: scale of the margins; 0 is FedAvg.
      denominator: the sum is over "all" classes, a cross-entropy; or over the "others" than y, the
        paper's equation, whose loss is not bounded below.
    """

    tau: float = core.number(default=1.0, allowed="at least 0")
    denominator: Literal["all", "others"] = core.static(default="all")

    def remarks(self, federation):
        plain = not self.tau and self.denominator == "all"
        return [*super().remarks(federation), *["tau is 0: trained as FedAvg"] * plain]

    def loss(self, task, logits, batch, client):
        counts = jnp.maximum(client.class_counts.astype(logits.dtype), NONE)
        logits = logits - (self.tau * counts**-0.25).astype(logits.dtype)
        if self.denominator == "all":
            return task.mean_loss(logits, batch)
        own = batch.labels[:, None] == jnp.arange(logits.shape[1])
        others = jax.nn.logsumexp(jnp.where(own, -jnp.inf, logits), axis=1)
        losses = others - jnp.sum(jnp.where(own, logits, 0), axis=1)
        return jnp.sum(jnp.where(batch.valid, losses, 0)) / jnp.maximum(jnp.sum(batch.valid), 1)
