"""Batch normalization against NumPy in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.models.normalization import BatchNorm, masked_moments
from fedjax_pfl.testing.toys import assert_close

EPSILON, MOMENTUM = 1e-5, 0.1


class Reference:
    """Batch normalization as PyTorch has it, of rows [n, C], with its gradients by hand."""

    def __init__(self, scale, bias, mean, var):
        self.scale, self.bias = np.array(scale, float), np.array(bias, float)
        self.mean, self.var = np.array(mean, float), np.array(var, float)

    def forward(self, rows):
        n = len(rows)
        mean = rows.sum(0) / n
        centred = rows - mean
        biased = (centred**2).sum(0) / n
        self.mean = (1 - MOMENTUM) * self.mean + MOMENTUM * mean
        if n > 1:
            self.var = (1 - MOMENTUM) * self.var + MOMENTUM * biased * n / (n - 1)
        self.inverse = 1 / np.sqrt(biased + EPSILON)
        self.normalized = centred * self.inverse
        return self.scale * self.normalized + self.bias

    def backward(self, slope):
        """(gradient of the rows, of the scale, of the bias)."""
        inner = slope * self.scale
        through_mean = inner.mean(0)
        through_var = self.normalized * (inner * self.normalized).mean(0)
        rows = self.inverse * (inner - through_mean - through_var)
        return rows, (slope * self.normalized).sum(0), slope.sum(0)

    def evaluate(self, rows):
        return self.scale * (rows - self.mean) / np.sqrt(self.var + EPSILON) + self.bias


def variables(channels, rng):
    return {
        "params": {"scale": rng.normal(size=channels), "bias": rng.normal(size=channels)},
        "batch_stats": {"mean": rng.normal(size=channels), "var": rng.uniform(1, 2, channels)},
    }


def reference_of(tree):
    return Reference(**tree["params"], **tree["batch_stats"])


@jax.jit
def normalized(tree, x, valid):
    """(output, new running statistics) in training."""
    return BatchNorm().apply(tree, x, True, valid, mutable=["batch_stats"])


@jax.jit
@partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
def sloped(params, x, tree, slope, valid):
    out, new = normalized({**tree, "params": params}, x, valid)
    return (out * slope).sum(), (out, new)


@pytest.mark.parametrize("shape", [(6, 3), (6, 2, 3, 3)])
@pytest.mark.parametrize("valid", [(1, 1, 1, 1, 1, 1), (1, 0, 1, 1, 0, 0), (0, 0, 0, 1, 0, 0)])
def test_forward_backward_and_running_statistics(shape, valid):
    rng = np.random.default_rng(0)
    valid = np.array(valid, bool)
    tree = variables(3, rng)
    reference = reference_of(tree)
    with jax.enable_x64(True):
        for _ in range(2):  # the second step starts from statistics that moved
            x, slope = rng.normal(3, 2, shape), rng.normal(size=shape)
            slope[~valid] = 0  # what the masked loss of a batch gives
            (_, (out, new)), (of_params, of_x) = sloped(tree["params"], x, tree, slope, valid)
            wanted = reference.forward(x[valid].reshape(-1, 3))
            rows, scale, bias = reference.backward(slope[valid].reshape(-1, 3))
            assert_close(out[valid].reshape(-1, 3), wanted, "output")
            assert_close(of_x[valid].reshape(-1, 3), rows, "gradient of the input")
            assert not np.any(of_x[~valid])
            assert_close(of_params, {"bias": bias, "scale": scale}, "gradient of the parameters")
            tree = {**tree, **new}
            assert_close(tree["batch_stats"]["mean"], reference.mean, "running mean")
            assert_close(tree["batch_stats"]["var"], reference.var, "running variance")
        out = jax.jit(BatchNorm().apply, static_argnums=2)(tree, x, False, valid)
        assert_close(out.reshape(-1, 3), reference.evaluate(x.reshape(-1, 3)), "evaluation")


def test_batches_without_a_sample_or_with_one_value():
    rng = np.random.default_rng(0)
    tree, x = jax.tree.map(np.float32, (variables(3, rng), rng.normal(size=(4, 3))))

    def after(valid):
        out, new = normalized(tree, x, np.array(valid))
        assert np.isfinite(out).all()
        return new["batch_stats"]

    empty = after([False] * 4)
    assert_close(empty, tree["batch_stats"], "nothing valid", 1e-6)
    single = after([False, True, False, False])
    assert_close(single["var"], tree["batch_stats"]["var"], "variance of one value", 1e-6)
    assert_close(single["mean"], 0.9 * tree["batch_stats"]["mean"] + 0.1 * x[1], "mean", 1e-6)


def test_padding_has_no_influence():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 2, 3)).astype(np.float32)
    valid = np.array([True, True, False, True])
    other = x.copy()
    other[2] = np.nan
    moments = jax.jit(masked_moments)
    for a, b in zip(moments(x, valid), moments(other, valid), strict=True):
        np.testing.assert_array_equal(a, b)
    assert moments(x, valid)[2] == 6 and masked_moments(x)[2] == 8


def test_lanes_are_loops():
    rng = np.random.default_rng(0)
    tree = variables(3, rng)
    x, valid = rng.normal(size=(5, 4, 3)), rng.random((5, 4)) < 0.6

    with jax.enable_x64(True):
        together = jax.jit(jax.vmap(normalized, (None, 0, 0)))(tree, x, valid)
        for i in range(5):
            lane = jax.tree.map(lambda leaf, i=i: leaf[i], together)
            assert_close(lane, normalized(tree, x[i], valid[i]), f"lane {i}")


def test_half_precision_keeps_its_statistics():
    x = 100 + np.random.default_rng(0).normal(size=(512, 1)).astype(np.float32)
    half = jnp.asarray(x, jnp.bfloat16)
    tree = BatchNorm().init(jax.random.key(0), half)
    # Operation by operation: what XLA fuses, it may keep in single precision.
    out, new = BatchNorm().apply(tree, half, True, mutable=["batch_stats"])
    assert out.dtype == jnp.bfloat16
    exact = np.asarray(half, np.float64)
    np.testing.assert_allclose(new["batch_stats"]["mean"][0], 0.1 * exact.mean(), rtol=1e-5)
    np.testing.assert_allclose(new["batch_stats"]["var"][0], 0.9 + 0.1 * exact.var(ddof=1), 1e-3)


def test_initialising_moves_nothing():
    tree = BatchNorm().init(jax.random.key(0), jnp.full((4, 2), 5.0), True)
    assert_close(tree["batch_stats"], {"mean": np.zeros(2), "var": np.ones(2)}, "statistics", 0)
