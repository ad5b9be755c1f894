"""A hypernetwork, which generates a network's parameters from a client's embedding."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core, trees
from fedjax_pfl.aggregation import products


@core.struct
class Hypernetwork:
    """psi: a trunk, then a linear layer for each tensor of the target network.

    Attributes:
      trunk: (kernel [d, h], bias [h]), then (kernel [h, h], bias [h]) for each further layer.
      kernel, bias: like the generated leaves of a model, [h, ...] and [...].
    """

    trunk: tuple
    kernel: core.Tree
    bias: core.Tree

    def __call__(self, embedding: jax.Array) -> core.Tree:
        """Return theta = h(v; psi), the generated leaves of one model."""
        hidden = through(self.trunk, embedding)
        return jax.tree.map(lambda w, b: products.rows(hidden, w) + b, self.kernel, self.bias)

    def pullback(self, embeddings: jax.Array, change: core.Stack) -> tuple[core.Tree, jax.Array]:
        """Return the products of changes of generated leaves and Jacobians: (of psi, of each v).

        Automatic differentiation computes the kernels' product transposed, which is slow to turn.

        Args:
          embeddings: [M, d].
          change: leaves [M, ...].
        """
        trunks = jax.vmap(through, in_axes=(None, 0))
        hidden, transpose = jax.vjp(trunks, self.trunk, embeddings)
        kernel = jax.tree.map(lambda leaf: products.rows(hidden.T, leaf), change)
        bias = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), change)
        flat = (jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1), tree)
                for tree in (change, self.kernel))  # fmt: skip
        terms = jax.tree.map(lambda leaf, w: products.matmul(leaf, w.T), *flat)
        trunk, at = transpose(sum(jax.tree.leaves(terms)))
        return Hypernetwork(trunk, kernel, bias), at


def through(trunk: tuple, embedding: jax.Array) -> jax.Array:
    """Return the output of the trunk, [h], for one embedding."""
    hidden = embedding
    for k, (kernel, bias) in enumerate(trunk):
        hidden = products.matmul(jax.nn.relu(hidden) if k else hidden, kernel) + bias
    return hidden


def first(key: core.Key, sizes: tuple[int, ...], like: core.Tree, dtype: jnp.dtype) -> Hypernetwork:
    """Return an initial hypernetwork.

    Args:
      sizes: (d, h, ..., h), of the embedding and of each layer of the trunk.
      like: the generated leaves, with None in place of all others.
    """
    drawn, hidden = itertools.count(), sizes[-1]

    def uniform(fan_in, *shape):
        return linear(jax.random.fold_in(key, next(drawn)), shape, fan_in, dtype)

    return Hypernetwork(
        tuple((uniform(a, a, b), uniform(a, b)) for a, b in itertools.pairwise(sizes)),
        jax.tree.map(lambda leaf: uniform(hidden, hidden, *leaf.shape), like),
        jax.tree.map(lambda leaf: uniform(hidden, *leaf.shape), like),
    )


def linear(key: core.Key, shape: tuple[int, ...], fan_in: int, dtype: jnp.dtype) -> jax.Array:
    """Return initial weights of a linear layer, uniform within 1 / sqrt(fan_in)."""
    return jax.random.uniform(key, shape, dtype, -1, 1) / math.sqrt(fan_in)


def learnt_embeddings(
    ctx: core.Context,
    psi: Hypernetwork,
    embedding: jax.Array,
    private: core.Tree,
    clip: core.Scalar | float,
) -> core.Stack:
    """Return models [K, ...] of clients that train an embedding through a frozen psi.

    Args:
      ctx: of these clients.
      embedding, private: the common start; private leaves are trained, too.
      clip: largest norm of the embedding's gradient; 0: no limit.
    """
    federation = ctx.federation

    def generated(model):
        learnt = model["params"]
        own = {**model, "params": learnt["private"]}
        return trees.join(psi(learnt["embedding"]), own)

    def forward_pass(model, batch, rng, broadcast, client):
        made = generated(model)
        result = federation.task.forward(made, batch, rng)
        penalty = federation.penalty(made["params"], result.batch, client, rng)
        return result._replace(loss=result.loss + penalty)

    def correct(gradient, params, broadcast, client):
        return gradient | {"embedding": clipped(gradient["embedding"], clip)}

    start = {**private, "params": {"embedding": embedding, "private": private["params"]}}
    # `forward_pass` adds the extra loss of the generated model; these "params" are no model's.
    learning = replace(ctx, federation=federation.replace_training(extra_loss=None))
    learnt = learning.train(
        core.Broadcast(start), forward=forward_pass, correct=correct,
        trainable=jax.tree.map(lambda _: True, start["params"]),
    ).models  # fmt: skip
    return jax.vmap(generated)(learnt)


def clipped(gradient: core.Tree, bound: core.Scalar | float) -> core.Tree:
    """Clip the gradient's norm to `bound`; 0: no limit."""
    most = jnp.where(bound > 0, bound, jnp.inf)
    return optax.clip_by_global_norm(most).update(gradient, optax.EmptyState())[0]
