"""Federated Optimization in Heterogeneous Networks.

Tian Li, Anit Kumar Sahu, Manzil Zaheer, Maziar Sanjabi, Ameet Talwalkar, Virginia Smith.
MLSys 2020. https://arxiv.org/abs/1812.06127
"""

import jax
import jax.numpy as jnp

from fedjax_pfl import core, training
from fedjax_pfl.algorithms.fedavg import FedAvg


@core.algorithm("fedprox")
class FedProx(FedAvg):
    """FedAvg whose clients stay near the server's model: f_i(y) + (mu / 2) |y - w|^2.

    The term applies to shared parameters only.

    Attributes:
      proximal_weight: mu; 1 is the best of 0.01, 0.1, 1, 10 in FedDWA's runs; Li et al. tune over
        0.001, 0.01, 0.1 and 1; they use 1 for three of five data sets, 0.001 and 0.01 for the rest.
      slow_fraction: fraction of slow members per round: each trains a number of epochs drawn from
        1, ..., E - 1 instead of E, and is averaged like the others.
    """

    proximal_weight: float = core.number(default=1.0, allowed="at least 0")
    slow_fraction: float = core.static(default=0.0, allowed="in [0, 1]")

    def check(self, federation):
        schedule = federation.schedule
        if self.slow_fraction and schedule.steps is not None:
            raise core.InputError(
                f"{self.name}'s slow clients take fewer epochs than the others: give local_epochs "
                "in place of local_steps, or slow_fraction=0."
            )
        if self.slow_fraction and schedule.epochs < 2:
            raise core.InputError(
                f"{self.name}'s slow clients take fewer epochs than the others: local_epochs must "
                f"be at least 2, got {schedule.epochs}."
            )

    def remarks(self, federation):
        notes = super().remarks(federation)
        if not self.proximal_weight:
            notes.append("proximal_weight is 0: trained as FedAvg")
        if self.slow_fraction:
            notes.append(f"{self.slow_fraction:g} of a round's clients train fewer epochs")
        return notes

    def local_update(self, ctx, state, received):
        pull, server = training.proximal(self.proximal_weight), state.server["params"]
        epochs = self.epochs(ctx) if self.slow_fraction else None
        return super().local_update(
            ctx, state, received, extra_loss=pull, broadcast=server, epochs=epochs
        )

    def epochs(self, ctx):
        """Return the epochs of each member, int32 [M].

        M - round(M (1 - slow_fraction)) members are slow."""
        key, every = ctx.key_for("slow"), ctx.federation.schedule.epochs
        present, place = ctx.cohort.mask, jnp.argsort(ctx.cohort.order(key))
        before = jnp.sum(present & (place < place[:, None]), axis=1)  # members with lower lots
        count = jnp.sum(present)
        slow = before < count - jnp.round(count * (1 - self.slow_fraction))

        def fewer(i):
            return jax.random.randint(jax.random.fold_in(key, i), (), 1, every, jnp.int32)

        return jnp.where(slow, jax.vmap(fewer)(ctx.ids[ctx.cohort.rows]), every)
