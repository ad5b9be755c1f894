"""Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration.

Xinghao Wu, Xuefeng Liu, Jianwei Niu, Guogang Zhu, Shaojie Tang. ICCV 2023.
https://arxiv.org/abs/2309.11103
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core, mixing, similarity, trees


@core.struct
class State:
    server: Any = core.per_server()  # g, the shared leaves
    private: Any = core.per_client()  # every client's own leaves
    custom: Any = core.per_client()  # u_i, like the server's parameters
    critical: Any = core.per_client()  # m_i, bool, like the server's parameters


@core.algorithm("fedcac")
class FedCAC(core.Algorithm):
    """FedCAC: a client's critical parameters are averaged only with similar clients'.

    A client trains from m_i u_i + (1 - m_i) g. Its critical parameters m_i are, in each tensor, the
    `tau` of largest |(w_i - start) w_i|, a first-order estimate of the loss's change without them.
    u_i is the plain mean of w_i and the models of its collaborators: those whose critical
    parameters overlap with its own by at least mean + (t + 1) / beta (max - mean) of all pairs of
    the round. g is the average of all.

    The server computes the m_i from uploads, so a member sends and receives one model.

    Attributes:
      tau: share of critical parameters; 0 is FedAvg.
      beta: rounds with collaborators, whose number falls from round to round; afterwards critical
        parameters are trained locally.
    """

    revision = 2

    tau: float = core.number(default=0.5, allowed="in [0, 1]")
    beta: float = core.number(default=100.0, allowed="above 0")

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError("fedcac averages what clients share, and share is 'none'.")

    def remarks(self, federation):
        return [*super().remarks(federation), *["tau is 0: trained as FedAvg"] * (not self.tau)]

    def init(self, ctx):
        server, private = ctx.plan.split(ctx.initial_model())
        custom = ctx.replicate(server["params"])
        critical = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), custom)
        return State(server, ctx.replicate(private), custom, critical)

    def round(self, ctx, state):
        received = self.received(state, ctx.cohort.rows)
        trained, cohort, loss = ctx.train(received)
        sent = ctx.upload(trained, received, cohort=cohort)
        (old, _), (new, private) = ctx.plan.split(received), ctx.plan.split(sent)
        critical = jax.tree.map(self.most_sensitive, old["params"], new["params"])
        chosen = self.collaborators(ctx.t, overlaps(critical, ctx.dtype), cohort.mask)
        alike = mixing.normalize(chosen.astype(ctx.dtype))
        custom = ctx.mix(alike, sent, onto=trained)
        shares = mixing.by_size(ctx.sizes(), cohort.mask)
        state = State(
            ctx.aggregate(shares, new, onto=state.server),
            cohort.scatter(state.private, private),
            cohort.scatter(state.custom, ctx.plan.split(custom)[0]["params"]),
            cohort.scatter(state.critical, critical),
        )
        count = jnp.sum(chosen, axis=1) - jnp.diagonal(chosen)
        own = self.tau * jnp.diagonal(alike) + (1 - self.tau) * shares  # beside those of g
        clients = {"train_loss": loss, "collaborators": count, "self_weight": own}
        return state, ctx.record(cohort, clients=clients, mixing=alike, server=shares)

    def received(self, state: State, rows) -> core.Stack:
        """Return m_i u_i + (1 - m_i) g of clients `rows`, with their private leaves."""
        own, custom, critical = trees.take((state.private, state.custom, state.critical), rows)
        server = trees.replicate(state.server, len(rows))
        params = jax.tree.map(jnp.where, critical, custom, server["params"])
        return trees.join({**server, "params": params}, own)

    def most_sensitive(self, old: jax.Array, new: jax.Array) -> jax.Array:
        """Return which entries of each client's leaf [M, ...] are critical, bool [M, ...]."""
        score = jnp.abs((new - old) * new).reshape(len(new), -1)
        count = jnp.floor(self.tau * score.shape[1]).astype(jnp.int32)
        least = kth_largest(score, jnp.maximum(count, 1))[:, None]
        return ((score >= least) & (score > 0) & (count > 0)).reshape(new.shape)

    def collaborators(self, t, overlap: jax.Array, present: jax.Array) -> jax.Array:
        """Return whose models u_i averages, bool [M, M]; no one's for absent members."""
        count = len(overlap)
        pairs = present[:, None] & present & ~jnp.eye(count, dtype=bool)
        mean = mixing.ratio(jnp.sum(jnp.where(pairs, overlap, 0)), jnp.sum(pairs))
        most = jnp.max(jnp.where(pairs, overlap, 0))
        passed = (t + 1) / self.beta
        least = jnp.minimum(mean + passed * (most - mean), most)
        near = pairs & (overlap >= least) & (passed <= 1)
        return near | (jnp.eye(count, dtype=bool) & present)

    def models(self, ctx, state, rows):
        named = {"personalized": self.received(state, rows)}
        if not jax.tree.leaves(state.private):
            named["global"] = core.Broadcast(state.server)
        return named


def kth_largest(values: jax.Array, k: core.Scalar) -> jax.Array:
    """Return the k-th largest of the non-negative numbers in each row [M, n], [M].

    Their bits, read as whole numbers, have the same order, so that the answer is found bit by bit:
    a tenth of the time of sorting the parameters.
    """
    width = jnp.finfo(values.dtype).bits
    words = lax.bitcast_convert_type(values, f"uint{width}")

    def with_bit(position, found):
        higher = found | (jnp.ones_like(found) << (width - 2 - position).astype(found.dtype))
        enough = jnp.sum(words >= higher[:, None], axis=1, dtype=jnp.int32) >= k
        return jnp.where(enough, higher, found)

    found = lax.fori_loop(0, width - 1, with_bit, jnp.zeros(len(values), words.dtype))
    return lax.bitcast_convert_type(found, values.dtype)


def overlaps(critical: core.Stack, dtype) -> jax.Array:
    """Return 1 - |m_i - m_j|_1 / 2n for masks of n entries each, [M, M]."""
    masks = jax.tree.map(lambda leaf: leaf.astype(dtype), critical)
    both = similarity.gram(masks, masks)
    size = sum(leaf[0].size for leaf in jax.tree.leaves(critical))
    held = jnp.diagonal(both)
    return 1 - (held[:, None] + held - 2 * both) / (2 * size)
