"""Compressors decode what their formulas say, are unbiased where they claim it, and count bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.uploads import compression
from fedjax_pfl.uploads.compression import Qsgd, RandK, Rotate, Sign, TopK, Uniform

X = np.random.default_rng(0).normal(size=37).astype(np.float32)


def decoded(compressor, x=X, seed=0):
    return np.asarray(compressor({"w": jnp.asarray(x)}, jax.random.key(seed))["w"])


def test_top_k_keeps_the_largest():
    sent = decoded(TopK(0.1))
    largest = np.argsort(-np.abs(X))[:4]
    np.testing.assert_array_equal(np.flatnonzero(sent), np.sort(largest))
    np.testing.assert_array_equal(sent[largest], X[largest])


def test_sign():
    np.testing.assert_allclose(decoded(Sign()), np.abs(X).mean() * np.sign(X), rtol=1e-6)


@pytest.mark.parametrize("compressor", [TopK(1.0), RandK(1.0)])
def test_everything_is_the_update_itself(compressor):
    np.testing.assert_array_equal(decoded(compressor), X)


@pytest.mark.costly
@pytest.mark.parametrize("compressor", [Qsgd(24), Uniform(22), Rotate(24)])
def test_many_bits_are_nearly_exact(compressor):
    np.testing.assert_allclose(decoded(compressor), X, atol=1e-5)


@pytest.mark.parametrize("compressor", [Qsgd(3), Uniform(2), RandK(0.2), Rotate(3)], ids=str)
def test_unbiased(compressor):
    draws = 4000
    keys = jax.random.split(jax.random.key(3), draws)
    sent = np.asarray(jax.jit(jax.vmap(lambda k: compressor.leaf(jnp.asarray(X), k)))(keys))
    error = np.abs(sent.mean(0) - X)
    assert np.all(error < 5 * sent.std(0) / np.sqrt(draws) + 1e-4)


def test_leaves_are_rounded_apart():
    x = {"a": jnp.asarray(X), "b": jnp.asarray(X)}
    sent = Qsgd(3)(x, jax.random.key(0))
    assert not np.array_equal(sent["a"], sent["b"])


def test_variance_of_qsgd_is_within_its_bound():
    x = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    errors = [np.sum((decoded(Qsgd(4), x, seed) - x) ** 2) for seed in range(20)]
    s = 7
    assert 0.4 < np.mean(errors) / (min(1000 / s**2, 1000**0.5 / s) * np.sum(x**2)) < 0.8


@pytest.mark.costly
@pytest.mark.parametrize(
    "compressor", [Qsgd(3), Uniform(3), TopK(0.1), RandK(0.1), Sign(), Rotate()]
)
def test_zeros_and_single_numbers(compressor):
    assert not np.abs(decoded(compressor, np.zeros(5, np.float32))).any()
    assert np.isfinite(decoded(compressor, np.float32([2.5]))).all()


def test_bits_by_hand():
    sizes = (1000, 10)
    assert compression.num_sent(100, 0.07) == 7  # 0.07 * 100 is a little more in binary numbers
    assert Qsgd(4).bits(sizes, 32) == 1010 * 4 + 2 * 32
    assert Uniform(8).bits(sizes, 32) == 1010 * 8 + 2 * 64
    assert TopK(0.01).bits(sizes, 32) == 10 * (32 + 10) + 1 * (32 + 4)  # indices for each number
    assert RandK(0.01).bits(sizes, 32) == 10 * 32 + 64 + 32 + 64
    assert Sign().bits(sizes, 32) == 1010 + 64
    assert Rotate(1).bits(sizes, 32) == 1024 + 16 + 2 * 96
    assert TopK(1.0).bits(sizes, 32) == 1010 * 32


def test_hadamard():
    """It is the Kronecker power of [[1, 1], [1, -1]], orthonormal."""
    matrix = np.ones((1, 1))
    for _ in range(3):
        matrix = np.kron(matrix, [[1, 1], [1, -1]])
    ours = np.stack([compression.hadamard(jnp.asarray(row)) for row in np.eye(8)])
    np.testing.assert_allclose(ours, matrix / np.sqrt(8), atol=1e-6)


def test_one_bit_of_a_rotation_is_nearly_unbiased():
    draws = 500
    keys = jax.random.split(jax.random.key(3), draws)
    x = np.random.default_rng(1).normal(size=256).astype(np.float32)
    sent = np.asarray(jax.jit(jax.vmap(lambda k: Rotate(1).leaf(jnp.asarray(x), k)))(keys))
    np.testing.assert_allclose(sent.mean(0) @ x / (x @ x), 1, atol=0.02)
