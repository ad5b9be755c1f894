"""Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning.

Jun Luo, Shandong Wu. IJCAI 2022. https://arxiv.org/abs/2110.08394
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import core, mixing, similarity, trees
from fedjax_pfl.utils import keys


@core.struct
class State:
    cores: core.Stack = core.per_client()  # c_i
    relations: jax.Array = core.per_pair()  # q, [receiver, sender]
    # w_i as last trained, with the others' cores as downloaded
    personal: core.Stack = core.per_client()


@core.algorithm("apple")
class Apple(core.Algorithm):
    """Client i uses w_i = sum_j q_ij c_j, and learns its core c_i and its relations q_i (Alg. 1).

    On every minibatch both take a step along their gradients at the same point, with g the gradient
    at w_i: c_i moves along q_ii g, and q_ij along <g, c_j> + lambda(t) mu (q_ij - n_j / n). The
    others' cores stay as downloaded. Only cores are sent. Relations are neither normalized nor
    kept positive.

    The cores' rate and momentum are those of local training; the published ones are 0.01 and 0.9.
    Private leaves of w_i are c_i's own. So are statistics: a mixture of variances could be < 0.

    Attributes:
      relation_rate: eta_2, of the relations.
      mu: of the pull towards the relations' first values n_j / n.
      penalty_share: L divided by the number of rounds; lambda(t) falls from 1 in the first L
        rounds, then is 0. L is rounded down, so it is 0 in short runs.
      penalty_schedule: of lambda, "exponential", 1000^(-t / L), or "cosine", (1 + cos(pi t / L))/2.
      relation_momentum: of the relations' steps; new in each round.
      initial: the first cores: one "common" to all clients, or "independent" ones (the authors'
        code), of which w_i is at first an average of unrelated networks.
    """

    row_stochastic = False  # relations are free real numbers (section 3.2)

    relation_rate: float = core.number(default=1e-3, allowed="at least 0")
    mu: float = core.number(default=0.1, allowed="at least 0")
    penalty_share: float = core.number(default=0.1, allowed="in [0, 1]")
    penalty_schedule: Literal["exponential", "cosine"] = core.static(default="exponential")
    relation_momentum: float = core.number(default=0.9, allowed="in [0, 1)")
    initial: Literal["independent", "common"] = core.static(default="common")

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError("apple mixes what clients share, and share is 'none'.")

    def remarks(self, federation):
        notes = "relation_rate is 0: relations stay as they began"
        return [*super().remarks(federation), *[notes] * (not self.relation_rate)]

    def init(self, ctx):
        cores = ctx.replicate(ctx.initial_model())
        if self.initial == "independent":
            key, make = keys.derive(ctx.key, "init"), ctx.federation.initial_model
            cores = lax.map(lambda i: make(jax.random.fold_in(key, i)), ctx.ids)
        relations = ctx.replicate(self._first_relations(ctx))
        rows = jnp.arange(ctx.num_clients)
        personal = mixtures(ctx.plan, relations, cores, ctx.plan.trainable_shared(cores), rows)
        return State(cores, relations, personal)

    def round(self, ctx, state):
        step, rows, stack = ctx.sgd_step(), ctx.cohort.rows, ctx.plan.trainable_shared(state.cores)
        first, penalty = self._first_relations(ctx), self.penalty(ctx.t, ctx.num_rounds)

        def both(carry, batch, rng, stack, client):
            own, q, speed = carry
            model = mixture(ctx.plan, q, own.model, stack, client.row)
            result = step.loss_and_gradient(model, batch, rng, None, client)
            gradient = {**model, "params": result.gradient}
            g, mine = ctx.plan.trainable_shared(gradient), ctx.plan.trainable_shared(own.model)
            along = similarity.dots(stack, g).at[client.row].set(optax.tree.vdot(g, mine))
            speed = self.relation_momentum * speed + along + penalty * (q - first)
            scaled = trees.join(optax.tree.scale(q[client.row], g), gradient)["params"]
            own = step.update(own, result._replace(gradient=scaled))
            return own, q - self.relation_rate * speed, speed

        cores, relations = ctx.cohort.gather((state.cores, state.relations))
        begin = step.begin_all(cores), relations, jnp.zeros_like(relations)
        (local, q, _), finite, steps = ctx.run_clients(both, begin, broadcast=stack)
        cohort = ctx.cohort.mark_diverged(finite, steps)
        personal = mixtures(ctx.plan, q, local.model, stack, rows)
        sent = ctx.upload(local.model, cores, cohort=cohort)
        fields = cohort.scatter(vars(state), vars(State(sent, q, personal)))
        clients = {
            "train_loss": local.loss / jnp.maximum(steps, 1),
            "self_relation": jnp.take_along_axis(q, rows[:, None], axis=1)[:, 0],
        }
        # The paper counts N cores, the client's own among them.
        return State(**fields), ctx.record(
            cohort, down=ctx.num_clients, clients=clients, relations=q
        )

    def _first_relations(self, ctx):
        sizes = ctx.federation.data.train.size
        return mixing.by_size(sizes, sizes >= 0).astype(ctx.dtype)

    def penalty(self, t, total):
        """Return lambda(t) mu in round t of `total`."""
        # The margin is for rounding: 0.64 of 100 rounds are 64 in single precision too.
        last = jnp.floor(self.penalty_share * total * (1 + 1e-6))
        passed = t / jnp.maximum(last, 1)
        exponential = self.penalty_schedule == "exponential"
        factor = 1e-3**passed if exponential else (1 + jnp.cos(jnp.pi * passed)) / 2
        return jnp.where(t < last, self.mu * factor, 0)

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.personal, rows)}


def mixture(plan, q, own, stack, row):
    """Return w_i = sum_j q_j c_j for one client, with its own core as trained so far.

    Args:
      q: [N].
      own: c_i; its private leaves and statistics are those of w_i.
      stack: the mixed leaves of all cores as downloaded, [N, ...]; the row of c_i is not used.
    """
    others = mixing.combine(q.at[row].set(0), stack)
    mixed = optax.tree.add_scale(others, q[row], plan.trainable_shared(own))
    return trees.join(mixed, own)


def mixtures(plan, relations, own, stack, rows):
    """Return `mixture` for several clients."""
    return jax.vmap(partial(mixture, plan), (0, 0, None, 0))(relations, own, stack, rows)
