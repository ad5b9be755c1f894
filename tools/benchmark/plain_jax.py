"""FedAvg and FedDWA as one would write them in plain JAX, for the time that compiling takes.

They do the work of the library's programs, one client after the other: shuffled minibatches of
clients with unequal numbers of samples, the round's exchange, and each client's test accuracy. They
have none of its options.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax import lax

from .workloads import Workload

RATE, CAPACITY, NEAREST = 0.01, 50, 5


def compile_seconds(workload: Workload, network: nn.Module, algorithm: str) -> float:
    """Return CPU seconds of tracing and compiling the initial model and rounds."""
    shape, N, B = workload.shape, workload.num_clients, workload.batch_size

    def init(key):
        return network.init(key, jnp.zeros((1, *shape)))["params"]

    def losses(params, images, labels):
        outputs = network.apply({"params": params}, images.astype(jnp.float32) / 255)
        return optax.softmax_cross_entropy_with_integer_labels(outputs, labels), outputs

    def train(params, images, labels, size, key):
        order = jax.random.permutation(key, workload.train)
        order = order[jnp.argsort(order >= size, stable=True)]

        def step(k, params):
            at = k * B + jnp.arange(B)
            rows, valid = order[at], at < size

            def loss(params):
                one = losses(params, images[rows], labels[rows])[0]
                return jnp.sum(one * valid) / jnp.maximum(jnp.sum(valid), 1)

            return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss)(params))

        return lax.fori_loop(0, (size + B - 1) // B, step, params)

    def score(params, images, labels, size):
        def step(k, correct):
            at = k * B + jnp.arange(B)
            outputs = losses(params, images[at], labels[at])[1]
            return correct + jnp.sum((jnp.argmax(outputs, -1) == labels[at]) & (at < size))

        return lax.fori_loop(0, (size + B - 1) // B, step, 0) / size

    def fedavg(models, sizes, trained, _):
        shares = sizes / jnp.sum(sizes)
        mean = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), trained)
        return jax.tree.map(lambda leaf, old: jnp.broadcast_to(leaf, old.shape), mean, models)

    def feddwa(models, sizes, trained, again):
        guides, sent = (
            jnp.concatenate([leaf.reshape(N, -1) for leaf in jax.tree.leaves(tree)], 1)
            for tree in (again(trained), trained)
        )
        apart = jnp.sum(guides**2, 1)[:, None] + jnp.sum(sent**2, 1) - 2 * guides @ sent.T
        weights = 1 / jnp.maximum(apart, 1e-12)
        weights = jnp.where(weights >= lax.top_k(weights, NEAREST)[0][:, -1:], weights, 0)
        weights /= jnp.sum(weights, 1, keepdims=True)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), trained)

    exchange = {"fedavg": fedavg, "feddwa": feddwa}[algorithm]

    def rounds(models, key, length, train_set, test_set):
        def one(t, carry):
            models, history = carry

            def trained(models, purpose):
                keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, purpose), t), N)
                return lax.map(lambda one: train(*one), (models, *train_set, keys))

            first = trained(models, 0)
            models = exchange(models, train_set[2], first, lambda models: trained(models, 1))
            accuracy = lax.map(lambda one: score(*one), (models, *test_set))
            return models, history.at[t].set(accuracy)

        return lax.fori_loop(0, length, one, (models, jnp.zeros((CAPACITY, N))))

    def split(count):
        of_clients: Any = jax.ShapeDtypeStruct((N, count, *shape), np.uint8)
        return of_clients, jax.ShapeDtypeStruct((N, count), np.int32), counts

    counts, key = jax.ShapeDtypeStruct((N,), np.int32), jax.random.key(0)
    began = time.process_time()
    jax.jit(init).lower(key).compile()
    model = jax.eval_shape(init, key)
    models = jax.tree.map(lambda x: jax.ShapeDtypeStruct((N, *x.shape), x.dtype), model)
    sets = split(workload.train), split(workload.test)
    jax.jit(rounds).lower(models, key, np.int32(1), *sets).compile()
    return time.process_time() - began
