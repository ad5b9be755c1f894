"""Preservation of the Global Knowledge by Not-True Distillation in Federated Learning.

Gihun Lee, Minchan Jeong, Yongjin Shin, Sangmin Bae, Se-Young Yun. NeurIPS 2022.
https://arxiv.org/abs/2106.03097
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms.common.frozen_networks import check_passes, passes
from fedjax_pfl.algorithms.fedavg import Weighted


@core.algorithm("fedntd")
class FedNTD(Weighted):
    """FedNTD: FedAvg whose clients keep the received model's view of the not-true classes.

    Local loss f_i(y) + beta tau^2 KL(q_w || q_y), the mean over a minibatch. q are the softmax of
    the logits over tau without the sample's own class, of the model w as it was received, which is
    frozen and in evaluation mode, and of y.

    Attributes:
      beta: weight of the term; 0 is FedAvg.
      tau: temperature of the term.
      weighting: of the average, by "size", or "uniform" (PFLlib).
    """

    needs_classes = True

    beta: float = core.number(default=1.0, allowed="at least 0")
    tau: float = core.number(default=1.0, allowed="above 0")
    weighting: Literal["size", "uniform"] = core.static(default="size")

    def check(self, federation):
        check_passes(self.name, federation, networks=1)

    def remarks(self, federation):
        off = ["beta is 0: trained as FedAvg"] if not self.beta else []
        return [*super().remarks(federation), *off]

    def local_update(self, ctx, state, received):
        task = ctx.federation.task
        # With private leaves each member received another model.
        together = isinstance(received, core.Broadcast)

        def term(params, batch, broadcast, client):
            teacher = broadcast if together else client.operand
            logits = task.predict(teacher, batch.inputs)
            losses = not_true_distillation(logits, batch.logits, batch.labels, self.tau)
            count = jnp.maximum(jnp.sum(batch.valid), 1)
            return self.beta * jnp.sum(jnp.where(batch.valid, losses, 0)) / count

        held = {"broadcast": received.model} if together else {"operands": received}
        sent = super().local_update(ctx, state, received, extra_loss=term, **held)
        ctx.count_forward(passes(ctx.federation, networks=1) * sent.cohort.steps)
        return sent


def not_true_distillation(teacher, student, labels, tau) -> jax.Array:
    """Return tau^2 KL(teacher || student) of the softmax over the classes other than the labels.

    Args:
      teacher, student: logits, [B, C].
      labels: [B].
      tau: temperature.
    """
    own = labels[:, None] == jnp.arange(teacher.shape[1])
    given, learnt = (
        jax.nn.log_softmax(jnp.where(own, -jnp.inf, logits / tau)) for logits in (teacher, student)
    )
    apart = jnp.where(own, 0, given) - jnp.where(own, 0, learnt)
    return tau**2 * jnp.sum(jnp.exp(given) * apart, axis=1)
