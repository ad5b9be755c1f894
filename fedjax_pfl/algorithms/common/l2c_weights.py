"""L2C's learned weights: logits over all clients, or an attention that gives them."""

import itertools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from fedjax_pfl import core, mixing, similarity, trees
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
      logits: a function from these to logits over all clients, [M, N].
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
        return jnp.zeros_like(learnt).at[:, self.rows].set(slopes)

    def kept(self, ctx, cohort, state, learnt):
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
        self.rows, self.mask, self.known = cohort.rows, cohort.mask, cohort.gather(state.logits)
        first = ctx.initial_model()
        moved = ctx.uploaded(jax.tree.map(lambda new, old: old - new, trained, first))
        length = jnp.sqrt(similarity.squared_norms(moved)) + 1e-10
        unit = jax.tree.map(lambda leaf: leaf / trees.expand_to(leaf, length), moved)
        self.updates = [units(leaf) for leaf in jax.tree.leaves(unit)]
        self.learnt = trees.replicate(state.encoder, cohort.size)
        self.numbers = optax.tree.size(state.encoder)
        member = jnp.arange(cohort.size)
        shared = jax.vmap(scores, (None, None, 0))  # all updates are embedded once
        self.logits = self._known_and(shared(state.encoder, self.updates, member))

    @staticmethod
    def begin(ctx, **common) -> AttentionState:
        def layer(fan_in, fan_out):
            """The bound of the initial weights."""
            kernel = jnp.full((fan_in, fan_out), fan_in**-0.5, ctx.dtype)
            return {"kernel": kernel, "bias": kernel[0]}

        sent = jax.tree.leaves(ctx.uploaded(ctx.initial_model()))
        sizes = [(units(leaf[None]).shape[-1], *WIDTHS) for leaf in sent]
        scales = [[layer(*pair) for pair in itertools.pairwise(widths)] for widths in sizes]
        flat, unflat = ravel_pytree(scales)
        key = keys.derive(ctx.key, "encoder")
        encoder = unflat(flat * jax.random.uniform(key, flat.shape, flat.dtype, minval=-1))
        zero = ctx.replicate(jax.tree.map(jnp.zeros_like, encoder))
        return AttentionState(**common, mean=zero, square=zero, encoder=encoder)

    def logits_of(self, learnt):
        return self._known_and(self._each(lambda score, encoder: score(encoder), learnt))

    def gradient(self, learnt, slopes):
        def back(score, encoder, slope):
            return jax.vjp(score, encoder)[1](slope)[0]

        return self._each(back, learnt, slopes)

    def kept(self, ctx, cohort, state, learnt):
        shares = mixing.normalize(cohort.mask.astype(state.logits.dtype))
        sent = ctx.upload(learnt, core.Broadcast(state.encoder), "encoder")
        encoder = mixing.weighted_sum(shares, sent, onto=state.encoder)
        return {"encoder": encoder, "logits": cohort.scatter(state.logits, self.logits)}

    def _each(self, fn, *operands):
        """Return fn(score, *operands) of each member, where `score` gives its row [M] of scores."""

        def one(member):
            number, own = member
            return fn(lambda encoder: scores(encoder, self.updates, number), *own)

        return lax.map(one, (jnp.arange(len(self.rows)), operands))

    def _known_and(self, found):
        """Return logits [M, N]: new scores [M, M], and last ones of clients without an update."""
        found = jnp.where(self.mask, found, self.known[:, self.rows])
        return self.known.at[:, self.rows].set(found)


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
