"""Gradients of sample-level differential privacy: per-sample clipping, and noise (DP-SGD).

Abadi et al., CCS 2016, https://arxiv.org/abs/1607.00133.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.gradient_privacy import SamplePrivacy
from fedjax_pfl.utils import keys
from fedjax_pfl.utils.typing import Key, Scalar, Tree

CHUNK = 8  # samples at once on accelerators, each with a gradient of its own in memory
LARGEST = 1e6  # loss of a sample: no sample makes its client diverge, which would reveal it
SAMPLES, NOISE = 2**31 - 5, 2**31 - 6  # what a step's key is folded with


def private_gradient(
    loss_and_gradient: Callable[[Batch, Key], tuple[Scalar, Tree]],
    batch: Batch,
    *,
    privacy: SamplePrivacy,
    client: Client,
    rng: Key,
    noise_index: int,
    trainable: Tree | None = None,
    platform: str | None = "cpu",
) -> tuple[Scalar, Tree]:
    """Return (mean loss of a minibatch, its clipped and noisy gradient).

    g = (1 / B) (sum_s clip(g_s, C) + C z N(0, I)), with clip(v, C) = v min(1, C / |v|) and B the
    expected size of the client's minibatches, never the size of this one, which is private. Adding
    or removing a sample changes the sum by at most C, in the L2 norm over all trained leaves: a
    gradient that is not finite, or whose squares overflow, counts as 0, as padding does. The loss
    is a diagnostic, and is not private.

    Args:
      loss_and_gradient: (loss, gradient) of a minibatch of one sample.
      batch: the minibatch.
      privacy: C and z.
      client: the owner of the minibatch.
      rng: random key of the loss. The key of the noise is the step's own, into which
        `noise_index` and the numbers of `client.calls` are folded, so that no two calls share it.
      noise_index: index of the local training in its round.
      trainable: which leaves are trained, a tree of booleans; None for all. Others have the
        gradient 0 without noise.
      platform: one sample at a time on "cpu", where that is faster; `CHUNK` at once elsewhere.
    """
    size = len(batch.valid)
    chunk = 1 if platform in (None, "cpu") else min(CHUNK, size)
    samples_key = jax.random.fold_in(rng, SAMPLES)
    own = rng if client.calls is None or client.calls.key is None else client.calls.key
    noise_key = jax.random.fold_in(own, NOISE)

    def one(k):
        at = jnp.minimum(k, size - 1)
        sample = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, at, 1), batch)
        valid = (k < size) & sample.valid[0]
        sample = replace(sample, valid=jnp.ones_like(sample.valid))
        loss, gradient = loss_and_gradient(sample, jax.random.fold_in(samples_key, k))
        loss = jnp.where(valid & jnp.isfinite(loss), jnp.clip(loss, -LARGEST, LARGEST), 0)
        return loss, clipped(_trained(gradient, trainable), privacy.clip, valid)

    def add(total, indices):
        if chunk == 1:
            more = one(indices[0])
        else:
            more = jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.vmap(one)(indices))
        return jax.tree.map(jnp.add, total, more), None

    indices = jnp.arange(-(-size // chunk) * chunk, dtype=jnp.int32).reshape(-1, chunk)
    shapes = jax.eval_shape(one, indices[0, 0])
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    (loss, total), _ = lax.scan(add, zeros, indices)
    key = jax.random.fold_in(noise_key, noise_index)
    for number in privacy.count_gradient(client, batch):
        key = jax.random.fold_in(key, number)
    noise = privacy.noise_of(client)
    key = keys.of_mechanism(key, privacy.clip, noise, *privacy.position)
    noisy = _trained(add_noise(total, privacy.clip, noise, key), trainable)
    assert client.batch_size is not None  # the client loop's
    expected = jnp.maximum(client.batch_size, 1)
    count = jnp.maximum(jnp.sum(batch.valid), 1)
    gradient = jax.tree.map(lambda leaf: leaf / expected.astype(leaf.dtype), noisy)
    return loss / count.astype(loss.dtype), gradient


def clipped(gradient: Tree, bound: Scalar | float, valid: Scalar | bool = True) -> Tree:
    """Return one sample's gradient scaled down to a norm of at most `bound`.

    It is 0 where it is not finite, its squares overflow, or the sample is not valid.
    """
    norm = optax.tree.norm(gradient)
    fine = jnp.isfinite(norm) & valid
    factor = jnp.minimum(1, bound / jnp.where(norm > 0, norm, 1))
    factor = jnp.where(norm > 0, factor, 1)
    return jax.tree.map(lambda leaf: jnp.where(fine, leaf * factor.astype(leaf.dtype), 0), gradient)


def add_noise(total: Tree, clip: Scalar | float, noise: Scalar | float, key: Key) -> Tree:
    """Return a sum of clipped gradients with Gaussian noise of deviation clip times noise."""
    deviation = jnp.where(noise > 0, clip * noise, 0)  # without noise the clip may be infinite
    drawn = keys.normal_like(key, total)
    return jax.tree.map(lambda x, z: x + deviation.astype(x.dtype) * z, total, drawn)


def _trained(gradient: Tree, trainable: Tree | None) -> Tree:
    """Return the gradient with zeros for leaves that are not trained."""
    if trainable is None:
        return gradient
    return jax.tree.map(lambda on, g: g if on else jnp.zeros_like(g), trainable, gradient)
