"""SFL's graphs of clients: non-negative edges [N, N], one row per receiver."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import mixing, similarity
from fedjax_pfl.aggregation import products

# The published code's generator of a learned graph.
WIDTH, STEEPNESS, STEPS, RATE, DECAY, LARGEST = 40, 3.0, 10, 0.01, 1e-4, 30


def share_a_label(counts, others):
    """Return the pairs that share a label, bool [A, B], from counts [A, C] and [B, C]."""
    held, theirs = ((each > 0).astype(jnp.float32) for each in (counts, others))
    return products.matmul(held, theirs.T) > 0


def largest(scores, ids, count):
    """Return the mask of each row's `count` largest scores, bool [A, N]; ties go to lower ids."""
    order = jnp.argsort(ids)
    rank = jnp.argsort(jnp.argsort(-scores[:, order], axis=1, stable=True), axis=1)
    return rank[:, jnp.argsort(order)] < count


def nearest_by_cosine(changes, ids, count):
    """Return the `count` nearest clients by the cosine of changes, itself first, bool [N, N]."""
    cosines = similarity.cosines(changes, changes)
    own = jnp.eye(len(cosines), dtype=bool)
    return largest(jnp.where(own, jnp.inf, cosines), ids, count)


def first_generator(key, ids, dtype):
    """Return an initial generator: two embeddings of each client and two linear layers."""
    each = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(key, 0), i))(ids)
    embedding = jax.vmap(lambda k: jax.random.normal(k, (2, WIDTH), dtype))(each)
    bound = WIDTH**-0.5
    kernel, bias = (
        jax.random.uniform(jax.random.fold_in(key, part), shape, dtype, -bound, bound)
        for part, shape in ((1, (2, WIDTH, WIDTH)), (2, (2, WIDTH)))
    )
    return {"embedding": jnp.moveaxis(embedding, 1, 0), "kernel": kernel, "bias": bias}


def fitted_graph(generator, models, ids):
    """Return the generator's graph [N, N], fitted to the distances between models.

    Its unit rows are fitted to those of the distances as in the published code, so distant clients
    get large edges. Each row keeps its largest edges, divided by their sum, and may be empty.
    """
    squares = similarity.squared_distances(models, models)
    target = _unit_rows(jnp.sqrt(squares))

    def loss(generator):
        return jnp.mean(jnp.square(_unit_rows(_edges(generator)) - target))

    def step(_, generator):
        slope = jax.grad(loss)(generator)
        return jax.tree.map(lambda v, g: v - RATE * (g + DECAY * v), generator, slope)

    edges = _edges(lax.fori_loop(0, STEPS, step, generator))
    return mixing.normalize(jnp.where(largest(edges, ids, LARGEST), edges, 0))


def _edges(generator):
    """relu(tanh(3 (V_1 V_2^T - V_2 V_1^T))), V_k = tanh(3 (E_k W_k + b_k))."""
    inside = products.matmul(generator["embedding"], generator["kernel"])
    first, second = jnp.tanh(STEEPNESS * (inside + generator["bias"][:, None]))
    crossed = products.matmul(first, second.T)
    return jax.nn.relu(jnp.tanh(STEEPNESS * (crossed - crossed.T)))


def _unit_rows(matrix):
    """Rows over their lengths; rows of zeros stay, with finite gradients."""
    squares = jnp.sum(jnp.square(matrix), axis=1, keepdims=True)
    return matrix / jnp.sqrt(jnp.where(squares > 1e-24, squares, 1e-24))
