"""Learning to Collaborate in Decentralized Learning of Personalized Models.

Shuangtong Li, Tianyi Zhou, Xinmei Tian, Dacheng Tao. CVPR 2022.
https://doi.org/10.1109/CVPR52688.2022.00954
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import core, mixing, similarity, training, trees
from fedjax_pfl.algorithms.common.l2c_weights import Attention, Logits

BETAS = (0.9, 0.99)  # Adam's, as in the authors' later code
SOURCES = {"learnt": Logits, "attention": Attention}


@core.algorithm("l2c")
class L2C(core.Algorithm):
    """L2C: each client applies a mixture of all updates, with weights learned on validation data.

    Members exchange delta_j = w_j - train_j(w_j); w_i <- w_i - sum_j softmax(a_i)_j delta_j over
    the members that i listens to. At this model the loss f_i of a minibatch of validation samples
    has the slope -<grad f_i, delta_j> by the weight of j: through the softmax, a_i takes a step of
    Adam along it, which counts from the next round on. After `prune_after` rounds a client listens
    only to itself and its best neighbours.

    Private leaves and statistics are the client's own: a mixed variance could be < 0.
    f_i is taken in evaluation mode, without losses that local training adds. A client without
    validation samples keeps a_i.

    Attributes:
      logit_rate: of Adam; the authors' later code has .2 for attention.
      prune_after: T_0.
      neighbours: how many, besides the client itself; 0 is a tenth of all clients, at least one.
      whole_pass: take a step on each minibatch of a pass over the validation samples, at the model
        of the current a_i. The client's model is mixed before them. By default one step.
      weights: "learnt", a_i itself; or "attention" (meta-L2C), where a learned encoder of the
        updates, averaged over the members after each round, gives a_i.
    """

    validates = True

    logit_rate: float = 0.01
    prune_after: int = 10
    neighbours: int = core.static(default=0)
    whole_pass: bool = core.static(default=False)
    weights: Literal["learnt", "attention"] = core.static(default="learnt")

    def validate(self):
        for name in ("logit_rate", "prune_after", "neighbours"):
            core.require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")

    def check(self, federation):
        if not any(federation.plan.shared):
            raise core.InputError("l2c mixes what clients share, and share is 'none'.")
        others = federation.num_clients - 1
        core.require(self.neighbours <= others, "neighbours", self.neighbours, f"at most {others}")

    def init(self, ctx):
        pairs = (ctx.num_clients, ctx.num_clients)
        return SOURCES[self.weights].begin(
            ctx,
            models=ctx.replicate(ctx.initial_model()),
            logits=jnp.zeros(pairs, ctx.dtype),
            active=jnp.ones(pairs, bool),
            steps=jnp.zeros(ctx.num_clients, jnp.int32),
        )

    def round(self, ctx, state):
        received, active = ctx.cohort.gather((state.models, state.active))
        trained, cohort, loss = ctx.train(received)
        sent = ctx.upload(trained, received)
        deltas = optax.tree.sub(received, sent)
        source = SOURCES[self.weights](ctx, cohort, state, sent)
        active = self.pruned(ctx, source.logits, active)
        heard = active[:, cohort.rows] & cohort.mask  # [M, M]

        def mixed(logits):
            weights = mixing.softmax(logits[:, cohort.rows], heard)
            step = ctx.mix(weights, deltas, onto=deltas)["params"]
            return weights, {**trained, "params": optax.tree.sub(received["params"], step)}

        def learn(k, carry, at=None):
            """Take Adam's step of each member that has a validation minibatch k."""
            learnt, moments, counted = carry
            weights, models = mixed(source.logits_of(learnt)) if at is None else at
            gradient, finite, steps = self.validation_gradient(ctx, cohort, models, k)
            slopes = -similarity.gram(ctx.uploaded(gradient), ctx.uploaded(deltas))
            slopes = weights * (slopes - jnp.sum(weights * slopes, axis=1, keepdims=True))
            found = source.gradient(learnt, slopes)
            step, after = jax.vmap(optax.scale_by_adam(*BETAS).update)(found, moments)
            step = optax.tree.add_scale(step, source.decay, learnt)
            moved = optax.tree.add_scale(learnt, -self.logit_rate, step), after
            took = finite & (steps > 0) & trees.rows_finite(moved, cohort.size)
            return *trees.where(took, moved, (learnt, moments)), counted + steps

        weights, models = mixed(source.logits)
        moments = ctx.cohort.gather((state.steps, state.mean, state.square))
        begin = source.learnt, optax.ScaleByAdamState(*moments), jnp.zeros_like(cohort.steps)
        carry = learn(0, begin, (weights, models))
        if self.whole_pass:
            most = ctx.federation.data.validation.capacity
            carry = lax.fori_loop(1, self.minibatch(ctx).steps_per_epoch(most), learn, carry)
        learnt, (steps, mean, square), counted = carry
        kept = {"models": models, "active": active, "steps": steps, "mean": mean, "square": square}
        kept = {name: cohort.scatter(getattr(state, name), new) for name, new in kept.items()}
        state = replace(state, **kept, **source.kept(ctx, cohort, state, learnt))
        took_part = cohort.mask | cohort.diverged
        return state, ctx.record(
            cohort.counted(counted),
            down=jnp.sum(heard, axis=1) * took_part,  # its own included, as in FedDWA's Table 4
            numbers_up=source.numbers,
            numbers_down=source.numbers,
            clients={"train_loss": loss, "self_weight": jnp.diagonal(weights)},
            mixing=weights,
        )

    def pruned(self, ctx, logits, active):
        """Return whom members listen to, bool [M, N], by their logits [M, N]."""
        count = self.neighbours or max(1, ctx.num_clients // 10)
        due = (ctx.t >= self.prune_after) & jnp.all(active, axis=1)
        best = nearest(logits, ctx.cohort.rows, ctx.ids, count)
        return jnp.where(due[:, None], best, active)

    @staticmethod
    def minibatch(ctx):
        return training.Schedule(steps=1, batch_size=ctx.federation.schedule.batch_size)

    def validation_gradient(self, ctx, cohort, models, k):
        """Return (gradients of minibatches k, like `models`; finite [M]; steps [M])."""
        task, schedule = ctx.federation.task, self.minibatch(ctx)
        sizes = ctx.sizes("validation")

        def gradient(_, batch, rng, broadcast, client):
            def loss(params):
                return task.loss({**client.operand, "params": params}, batch, train=False)[0]

            return jax.grad(loss)(client.operand["params"])

        found, finite, steps = ctx.run_clients(
            gradient,
            optax.tree.zeros_like(models["params"]),
            split="validation",
            purpose="validation",
            schedule=schedule,
            operands=models,
            active=cohort.mask & (k < schedule.steps_per_epoch(sizes)),
            cursor=jnp.full_like(sizes, k),
        )
        return {**models, "params": found}, finite, steps

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}


def nearest(logits, rows, ids, count):
    """Return each client itself and the `count` others of largest logits [M, N], bool [M, N].

    Ties go to the lower permanent id.
    """
    own = rows[:, None] == jnp.arange(len(ids))
    order = jnp.lexsort((jnp.broadcast_to(ids, own.shape), jnp.where(own, -jnp.inf, -logits)))
    return jnp.argsort(order) <= count
