"""FedPHP: Federated Personalization with Inherited Private Models.

Xin-Chun Li, De-Chuan Zhan, Yunfeng Shao, Bingshuai Li, Shaoming Song. ECML PKDD 2021.
https://doi.org/10.1007/978-3-030-86486-6_36
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core, trees
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.frozen_networks import check_passes, passes

SOFTNESS = 4.0  # of the private model's softmax, in distillation
WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the kernels, in mean squared distances


@core.struct
class State(fedavg.State):
    own: core.Stack = core.per_client()  # v_i, the private models
    rounds: core.PerClient = core.per_client()  # int32, in which the client took part


@core.algorithm("fedphp")
class FedPHP(fedavg.FedAvg):
    """FedPHP: private models that inherit what their clients train, and teach it to the next.

    Local loss (1 - lambda) f_i(y) + lambda R, where R brings y near to the client's private model
    v_i, which is frozen and in evaluation mode. Then v_i <- m v_i + (1 - m) y with
    m = inheritance * min(1, k_i / K): k_i are the rounds in which the client took part before, K
    the rounds in which it takes part on average over the whole run. The private model is used; w is
    FedAvg's mean.

    Attributes:
      weight: lambda; 0: v_i is a moving average of what the client trains in FedAvg.
      regularizer: R: "mmd", the maximum mean discrepancy of the two models' features, with five
        Gaussian kernels; "distillation", the cross-entropy of y with v_i's softmax of logits / 4.
      inheritance: the most of m.
    """

    weight: float = core.number(default=0.1, allowed="in [0, 1]")
    regularizer: Literal["mmd", "distillation"] = core.static(default="mmd")
    inheritance: float = core.number(default=0.9, allowed="in [0, 1]")

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def needs_classes(self) -> bool:
        return self.regularizer == "distillation"

    @property  # pyright: ignore[reportAssignmentType] - it depends on a hyperparameter
    def unprotected(self) -> tuple[str, ...]:
        return ("the discrepancy of a minibatch's features",) if self.regularizer == "mmd" else ()

    def check(self, federation):
        if self.regularizer == "mmd":
            core.require_features(self, federation)
        check_passes(self.name, federation, networks=1)

    def remarks(self, federation):
        alone = ["weight is 1: trained without labels"] if self.weight == 1 else []
        return [*super().remarks(federation), *alone]

    def init(self, ctx):
        own = ctx.replicate(ctx.initial_model())
        none = jnp.zeros((ctx.num_clients,), jnp.int32)
        return State(**vars(super().init(ctx)), own=own, rounds=none)

    def local_update(self, ctx, state: State, received):
        task = ctx.federation.task

        def term(params, batch, broadcast, client):
            if self.regularizer == "mmd":
                features = task.features(client.operand, batch.inputs)
                near = discrepancy(batch.features, features, batch.valid)
            else:
                logits = task.predict(client.operand, batch.inputs) / SOFTNESS
                wanted, learnt = jax.nn.softmax(logits), jax.nn.log_softmax(batch.logits)
                losses = jnp.where(batch.valid, -jnp.sum(wanted * learnt, axis=1), 0)
                near = jnp.sum(losses) / jnp.maximum(jnp.sum(batch.valid), 1)
            return self.weight * (near - task.mean_loss(batch.logits, batch))

        own = ctx.cohort.gather(state.own)
        sent = super().local_update(ctx, state, received, extra_loss=term, operands=own)
        ctx.count_forward(passes(ctx.federation, networks=1) * sent.cohort.steps)
        return sent

    def server_update(self, ctx, state: State, mean, weights, used):
        after = super().server_update(ctx, state, mean, weights, used)
        own, rounds = used.cohort.gather((state.own, state.rounds))
        kept = self.kept(ctx, rounds)

        def inherit(old, new):
            m = trees.expand_to(old, kept)
            return (m * old + (1 - m) * new).astype(old.dtype)

        new = jax.tree.map(inherit, own, used.models), rounds + 1
        own, rounds = used.cohort.scatter((state.own, state.rounds), new)
        return replace(after, own=own, rounds=rounds)

    def kept(self, ctx, rounds):
        """Return m of clients that took part in so many rounds."""
        share = ctx.federation.participation.expected / ctx.num_clients
        usual = jnp.maximum(jnp.floor(share * ctx.num_rounds + 1e-6), 1)
        return self.inheritance * jnp.minimum(rounds / usual, 1)

    def models(self, ctx, state: State, rows):
        return super().models(ctx, state, rows) | {"personalized": trees.take(state.own, rows)}

    def new_client_start(self, ctx, state):
        return self.servers_model(state)


def discrepancy(z: jax.Array, other: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the squared maximum mean discrepancy of the valid rows of two samples [B, d].

    The kernel is the sum of Gaussian kernels with widths in proportion to the mean squared
    distance of two different rows of both samples; the widths have no gradient.
    """
    rows = jnp.concatenate([z, other])
    rows = rows.astype(jnp.promote_types(rows.dtype, "float32"))
    # Differences are exact where both models are equal, as when they begin.
    apart = jnp.sum(jnp.square(rows[:, None] - rows), axis=2)
    some = jnp.concatenate([valid, valid])
    pairs, count = some[:, None] & some, jnp.sum(some)
    total = jax.lax.stop_gradient(jnp.sum(jnp.where(pairs, apart, 0)))
    width = total / jnp.maximum(count * (count - 1), 1) + 1e-8
    kernel = sum(jnp.exp(-apart / (width * factor)) for factor in WIDTHS)
    side = jnp.concatenate([jnp.ones(len(z)), -jnp.ones(len(z))]).astype(rows.dtype)
    signed = jnp.where(pairs, kernel * side[:, None] * side, 0)
    return jnp.sum(signed) / jnp.maximum(jnp.sum(valid), 1) ** 2
