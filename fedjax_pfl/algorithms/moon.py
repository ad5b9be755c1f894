"""Model-Contrastive Federated Learning.

Qinbin Li, Bingsheng He, Dawn Song. CVPR 2021. https://arxiv.org/abs/2103.16257
"""

from dataclasses import replace

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms import fedavg
from fedjax_pfl.algorithms.common.frozen_networks import check_passes, passes

NETWORKS = 2  # frozen ones beside the trained one


@core.struct
class State(fedavg.State):
    previous: core.Stack = core.per_client()  # as each client last trained it
    took_part: core.PerClient = core.per_client()  # bool: whether it ever did


@core.algorithm("moon")
class Moon(fedavg.FedAvg):
    """MOON: FedAvg with a contrastive loss between a client's features, w's and its last model's.

    Local loss f_i(y) + mu l, l = -log(e^{cos(z, z_g) / tau} / (e^{cos(z, z_g) / tau} +
    e^{cos(z, z_p) / tau})), the mean over a minibatch. z are the features of y, z_g those of the
    model w as it was received, z_p those of the model that the client sent when it last took part;
    both are frozen and in evaluation mode. In its first round a client has no z_p and no term.

    Features are the inputs of the network's head. The paper's networks have a projection before
    it; a network of that form has it here, too.

    Attributes:
      mu: weight of the term; the paper tunes it over 0.1, 1, 5, 10.
      tau: temperature of the term.
    """

    mu: float = core.number(default=1.0, allowed="at least 0")
    tau: float = core.number(default=0.5, allowed="above 0")

    def check(self, federation):
        core.require_features(self, federation)
        check_passes(self.name, federation, NETWORKS)

    def remarks(self, federation):
        return [*super().remarks(federation), *["mu is 0: trained as FedAvg"] * (not self.mu)]

    def init(self, ctx):
        start, never = super().init(ctx), jnp.zeros((ctx.num_clients,), bool)
        return State(**vars(start), previous=ctx.replicate(ctx.initial_model()), took_part=never)

    def local_update(self, ctx, state: State, received):
        task = ctx.federation.task
        # With private leaves each member received another model.
        together = isinstance(received, core.Broadcast)
        own = None if together else received
        previous, took_part = ctx.cohort.gather((state.previous, state.took_part))

        def term(params, batch, broadcast, client):
            own, previous, took_part = client.operand
            near = task.features(broadcast if own is None else own, batch.inputs)
            far = task.features(previous, batch.inputs)
            losses = contrast(batch.features, near, far, self.tau)
            count = jnp.maximum(jnp.sum(batch.valid), 1)
            mean = jnp.sum(jnp.where(batch.valid, losses, 0)) / count
            return self.mu * jnp.where(took_part, mean, 0)

        sent = super().local_update(
            ctx,
            state,
            received,
            extra_loss=term,
            broadcast=received.model if together else None,
            operands=(own, previous, took_part),
        )
        ctx.count_forward(passes(ctx.federation, NETWORKS) * sent.cohort.steps)
        return sent

    def server_update(self, ctx, state: State, mean, weights, used):
        after = super().server_update(ctx, state, mean, weights, used)
        new = (used.models, jnp.ones_like(used.cohort.mask))
        previous, took_part = used.cohort.scatter((state.previous, state.took_part), new)
        return replace(after, previous=previous, took_part=took_part)


def contrast(features: jax.Array, near: jax.Array, far: jax.Array, tau) -> jax.Array:
    """Return -log softmax of the cosines with `near` and `far`, at `near`, [B].

    Features are [B, d]. A row of zeros (ReLU networks have them) has cosine 0 with any other.
    """
    z = directions(features)
    gap = jnp.sum(z * directions(far), axis=1) - jnp.sum(z * directions(near), axis=1)
    return jax.nn.softplus(gap / tau)


def directions(features: jax.Array) -> jax.Array:
    """Normalize rows [B, d]; rows of zeros stay zero, with gradient 0."""
    features = features.astype(jnp.promote_types(features.dtype, "float32"))  # squares may be large
    squares = jnp.sum(jnp.square(features), axis=1, keepdims=True)
    some = squares > 0
    return jnp.where(some, features * jax.lax.rsqrt(jnp.where(some, squares, 1)), 0)
