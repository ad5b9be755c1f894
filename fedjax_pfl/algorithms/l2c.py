"""Learning to Collaborate in Decentralized Learning of Personalized Models.

Shuangtong Li, Tianyi Zhou, Xinmei Tian, Dacheng Tao. CVPR 2022.
https://doi.org/10.1109/CVPR52688.2022.00954
"""

import itertools
from dataclasses import replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from fedjax_pfl import core, mixing, similarity, training, trees
from fedjax_pfl.aggregation import products
from fedjax_pfl.utils import keys

WIDTHS = (10, 20)  # of the attention's layers, as in the authors' later code


@core.struct
class State:
    models: core.Stack = core.per_client()  # w_i
    logits: jax.Array = core.per_pair()  # a, [receiver, sender]
    active: jax.Array = core.per_pair()  # bool: whom a client listens to
    steps: jax.Array = core.per_client()  # int32, Adam's, and its moments of what a client learns
    mean: Any = core.per_pair()
    square: Any = core.per_pair()


@core.struct
class AttentionState(State):
    mean: Any = core.per_client()
    square: Any = core.per_client()
    encoder: Any = core.per_server()


class Logits:
    """One round in which each member learns its logits directly.

    Attributes:
      learnt: the learned parameters before the round, [M, ...].
      logits: logits over all clients before the round, [M, N]; `logits_of` computes them from the
        parameters.
      decay: weight decay of the learned parameters.
      numbers: how many numbers a member sends and receives besides updates; None: none.
    """

    decay: ClassVar[float] = 0.0
    numbers: int | None = None

    def __init__(self, ctx, cohort, state, trained):
        self.rows = cohort.rows
        self.learnt = self.logits = cohort.gather(state.logits)

    @staticmethod
    def begin(ctx, **common) -> State:
        zero = jnp.zeros_like(common["logits"])
        return State(**common, mean=zero, square=zero)

    def logits_of(self, learnt):
        return learnt

    def gradient(self, learnt, slopes):
        """Return the gradient, like `learnt`, from the slopes [M, M] of the members' logits."""
        return jnp.zeros_like(learnt).at[:, self.rows].set(slopes.astype(learnt.dtype))

    def learned_fields(self, ctx, cohort, state, learnt):
        """Return the fields of the state that hold the learned parameters."""
        return {"logits": cohort.scatter(state.logits, learnt)}


class Attention:
    """One round of meta-L2C: logits are scores of pairs of updates by a shared encoder.

    u_j is the common first model less j's trained one, divided by its norm. Each tensor of it is a
    list of rows, one for each unit that it leads to; two layers with tanh, the tensor's own, embed
    a row. The score of a pair is the mean over tensors of the mean over rows of inner products.

    Each member trains a copy of the encoder, and the copies are averaged. They are evaluated one
    after the other, so that memory holds the embeddings of one copy.
    """

    decay: ClassVar[float] = 0.01

    def __init__(self, ctx, cohort, state, trained):
        self.rows, self.mask, self.last_logits = (
            cohort.rows,
            cohort.mask,
            cohort.gather(state.logits),
        )
        first = ctx.initial_model()
        moved = ctx.plan.trainable_shared(jax.tree.map(lambda new, old: old - new, trained, first))
        length = jnp.sqrt(similarity.squared_norms(moved)) + 1e-10
        unit = jax.tree.map(lambda leaf: leaf / trees.expand_to(leaf, length), moved)
        self.updates = [units(leaf) for leaf in jax.tree.leaves(unit)]
        self.learnt = trees.replicate(state.encoder, cohort.size)
        self.numbers = optax.tree.size(state.encoder)
        member = jnp.arange(cohort.size)
        shared = jax.vmap(scores, (None, None, 0))  # all updates are embedded once
        self.logits = self._with_last(shared(state.encoder, self.updates, member))

    @staticmethod
    def begin(ctx, **common) -> AttentionState:
        def layer(fan_in, fan_out):
            """Return the bound of the initial weights."""
            kernel = jnp.full((fan_in, fan_out), fan_in**-0.5, ctx.dtype)
            return {"kernel": kernel, "bias": kernel[0]}

        sent = jax.tree.leaves(ctx.plan.trainable_shared(ctx.initial_model()))
        sizes = [(units(leaf[None]).shape[-1], *WIDTHS) for leaf in sent]
        scales = [[layer(*pair) for pair in itertools.pairwise(widths)] for widths in sizes]
        flat, unflat = ravel_pytree(scales)
        key = keys.derive(ctx.key, "encoder")
        encoder = unflat(flat * jax.random.uniform(key, flat.shape, flat.dtype, minval=-1))
        zero = ctx.replicate(jax.tree.map(jnp.zeros_like, encoder))
        return AttentionState(**common, mean=zero, square=zero, encoder=encoder)

    def logits_of(self, learnt):
        return self._with_last(self._each(lambda score, encoder: score(encoder), learnt))

    def gradient(self, learnt, slopes):
        def back(score, encoder, slope):
            return jax.vjp(score, encoder)[1](slope)[0]

        return self._each(back, learnt, slopes)

    def learned_fields(self, ctx, cohort, state, learnt):
        shares = mixing.normalize(cohort.mask.astype(state.logits.dtype))
        held = core.Broadcast(state.encoder)
        sent = ctx.upload(learnt, held, "encoder", cohort, compressed=False)
        encoder = mixing.weighted_sum(shares, sent, onto=state.encoder)
        return {"encoder": encoder, "logits": cohort.scatter(state.logits, self.logits)}

    def _each(self, fn, *operands):
        """Return fn(score, *operands) of each member, where `score` gives its row [M] of scores."""

        def one(member):
            number, own = member
            return fn(lambda encoder: scores(encoder, self.updates, number), *own)

        return lax.map(one, (jnp.arange(len(self.rows)), operands))

    def _with_last(self, found):
        """Return logits [M, N]: new scores [M, M], and last ones of clients without an update."""
        found = jnp.where(self.mask, found, self.last_logits[:, self.rows])
        return self.last_logits.at[:, self.rows].set(found)


BETAS = (0.9, 0.99)  # Adam's, as in the authors' later code
SOURCES = {"learned": Logits, "attention": Attention}


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
      logit_rate: of Adam; the authors' later code has 0.2 for attention.
      prune_after: T_0.
      neighbours: how many, besides the client itself; 0 is a tenth of all clients, at least one.
      whole_pass: take a step on each minibatch of a pass over the validation samples, at the model
        of the current a_i. The client's model is mixed before them. By default one step.
      weights: "learned", a_i itself; or "attention" (meta-L2C), where a learned encoder of the
        updates, averaged over the members after each round, gives a_i.
    """

    needs_validation = True
    also_sent = ("whom it listens to",)

    logit_rate: float = core.number(default=0.01, allowed="at least 0")
    prune_after: int = core.number(default=10, allowed="at least 0")
    neighbours: int = core.static(default=0, allowed="at least 0")
    whole_pass: bool = core.static(default=False)
    weights: Literal["learned", "attention"] = core.static(default="learned")

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
        sent = ctx.upload(trained, received, cohort=cohort)
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
            slopes = -similarity.gram(
                ctx.plan.trainable_shared(gradient), ctx.plan.trainable_shared(deltas)
            )
            slopes = weights * (slopes - jnp.sum(weights * slopes, axis=1, keepdims=True))
            by_learnt = source.gradient(learnt, slopes)
            step, after = jax.vmap(optax.scale_by_adam(*BETAS).update)(by_learnt, moments)
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
        fields = {
            "models": models,
            "active": active,
            "steps": steps,
            "mean": mean,
            "square": square,
        }
        fields = {name: cohort.scatter(getattr(state, name), new) for name, new in fields.items()}
        state = replace(state, **fields, **source.learned_fields(ctx, cohort, state, learnt))
        took_part = cohort.mask | cohort.diverged
        return state, ctx.record(
            cohort.counted(counted),
            down=jnp.sum(heard, axis=1) * took_part,  # with its own, as in FedDWA's Table 4
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


def units(stack):
    """Reshape a tensor [M, ...] to [M, units, inputs]; its last axis counts the units."""
    stack = stack[:, None] if stack.ndim == 1 else stack
    return jnp.moveaxis(stack, -1, 1).reshape(len(stack), stack.shape[-1], -1)


def scores(encoder, updates, i):
    """Return the scores of all updates with that of member i, [M].

    Args:
      encoder: two layers for each tensor.
      updates: tensors [M, units, inputs].
    """
    total = 0
    for (first, second), rows in zip(encoder, updates, strict=True):
        outer = jnp.tanh(_linear(second, jnp.tanh(_linear(first, rows))))
        flat = outer.reshape(len(outer), -1)
        total += products.matmul(flat, flat[i]) / rows.shape[1]
    return total / len(updates)


def _linear(layer, rows):
    return products.matmul(rows, layer["kernel"]) + layer["bias"]
