"""Layers: convolution and pooling are XLA's, padding tokens, first values."""

from functools import partial

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.layers import (
    Conv,
    Embedding,
    add_channels,
    convolve,
    initializers,
    max_pool,
    scale_channels,
)
from fedjax_pfl.models.networks import make_model
from tests.models.small import TINY


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [
        ((3, 3), 2, 1),
        ((2, 3), 3, 2),
        *(
            pytest.param(*case, marks=pytest.mark.costly)
            for case in (((5, 5), 1, 0), ((1, 1), 2, 0), ((3, 1), 1, 0), ((3, 3), 1, 1))
        ),
    ],
)
def test_convolution_is_xlas(kernel, stride, padding):
    x = np.random.default_rng(0).normal(size=(2, 8, 7, 3)).astype(np.float32)
    layer = Conv(4, kernel, padding, stride=stride)
    bare = Conv(4, kernel, padding, stride=stride, use_bias=False)
    initial = jax.eval_shape(bare.init, jax.random.key(0), x)
    assert set(initial["params"]) == {"kernel"}

    def convolution(x, kernel):
        around = ((padding, padding),) * 2
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    @jax.jit
    def three(x):
        weights = layer.init(jax.random.key(0), x)["params"]
        wanted = convolution(x, weights["kernel"])
        out = layer.apply({"params": weights}, x)
        bare_out = bare.apply({"params": {"kernel": weights["kernel"]}}, x)
        return wanted, wanted + weights["bias"], bare_out, out

    @jax.jit
    def slopes(weights, x):
        def mine(weights, x):
            return jax.numpy.sin(layer.apply({"params": weights}, x)).sum()

        def xlas(weights, x):
            return jax.numpy.sin(convolution(x, weights["kernel"]) + weights["bias"]).sum()

        return [jax.grad(fn, (0, 1))(weights, x) for fn in (mine, xlas)]

    wanted, with_bias, bare_out, out = three(x)
    for a, b in zip(
        *map(jax.tree.leaves, slopes(jax.jit(layer.init)(jax.random.key(0), x)["params"], x)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, 1e-4, 1e-4)
    assert np.abs(wanted - with_bias).max() > 1e-3
    np.testing.assert_allclose(out, with_bias, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bare_out, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(2, None, 0), (3, None, 0), (3, 2, 1), (3, 1, 0)]
)
def test_max_pooling_is_xlas(size, stride, padding):
    x = np.random.default_rng(0).normal(size=(2, 7, 8, 3)).astype(np.float32)
    step, around = stride or size, (padding, padding)
    wanted = jax.lax.reduce_window(
        x, -np.inf, jax.lax.max, (1, size, size, 1), (1, step, step, 1),
        ((0, 0), around, around, (0, 0)),
    )  # fmt: skip
    pooled = jax.jit(partial(max_pool, size=size, stride=stride, padding=padding))
    np.testing.assert_array_equal(pooled(x), wanted)


@pytest.mark.costly
def test_layers_with_gradients_of_their_own_have_hessian_vector_products():
    """Forward over reverse, which a layer's own backward pass could refuse."""
    with jax.enable_x64(True):
        x, kernel, d = (
            jax.random.normal(jax.random.key(k), shape)
            for k, shape in enumerate([(2, 6, 6, 3), (3, 3, 3, 4), (3, 3, 3, 4)])
        )

        def loss(kernel):
            out = convolve(x, kernel, 1)
            out = scale_channels(out, kernel[0, 0, 0]) + 0.1 * out
            return jax.numpy.sum(jax.numpy.sin(max_pool(add_channels(out, kernel[0, 0, 1] ** 2))))

        @jax.jit
        def products(kernel, d):
            g, e = jax.grad(loss), 1e-6
            ahead, behind = (g(kernel + s * d) for s in (e, -e))
            return jax.jvp(g, (kernel,), (d,))[1], (ahead - behind) / (2 * e)

        exact, near = products(kernel, d)
    assert np.abs(exact).max() > 1
    np.testing.assert_allclose(exact, near, rtol=1e-5, atol=1e-6)


def test_padding_tokens_are_zero_and_learn_nothing():
    layer = Embedding(5, 3)
    ids = np.array([[0, 2], [4, 0]])
    table = np.array(jax.jit(layer.init)(jax.random.key(0), ids)["params"]["table"])
    assert not np.any(table[0])
    table[0] = 7

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def looked_up(table):
        out = layer.apply({"params": {"table": table}}, ids)
        return out.sum(), out

    (_, out), slope = jax.device_get(looked_up(table))
    assert not np.any(out[0, 0]) and not np.any(out[1, 1])
    np.testing.assert_array_equal(out[0, 1], table[2])
    np.testing.assert_array_equal(slope[:, 0], [0, 0, 1, 0, 1])


def test_initial_laws():
    # PyTorch: uniform in +-1/sqrt(fan_in); ResNet-8: He's normal law; embeddings: N(0, 1).
    key = jax.random.key(0)
    conv = jax.jit(Conv(64, (5, 5)).init)(key, np.zeros((1, 5, 5, 8), np.float32))["params"]
    bound = 200**-0.5
    assert 0.99 * bound < np.abs(conv["kernel"]).max() <= bound
    assert np.abs(conv["bias"]).max() <= bound
    np.testing.assert_allclose(np.std(conv["kernel"]), bound / 3**0.5, rtol=0.02)
    normal, _ = initializers("kaiming", 200)
    drawn = jax.jit(lambda key: normal(key, (200, 64)))(key)
    np.testing.assert_allclose(np.std(drawn), 0.1, rtol=0.02)
    assert make_model("resnet8", TINY, 10).initializer == "kaiming"
    assert make_model("resnet8", TINY, 10, "flax").initializer == "flax"
    embedding = jax.jit(Embedding(500, 40).init)(key, np.zeros((1, 1), np.int32))
    table = np.asarray(embedding["params"]["table"])
    np.testing.assert_allclose(np.std(table[1:]), 1, rtol=0.02)


@pytest.mark.costly
def test_paddings_have_flaxs_names():
    x = jax.random.normal(jax.random.key(0), (2, 5, 6, 3))
    for padding, number in (("VALID", 0), ("SAME", 1)):
        named, plain = Conv(4, (3, 3), padding), Conv(4, (3, 3), number)
        model = plain.init(jax.random.key(1), x)
        np.testing.assert_array_equal(named.apply(model, x), plain.apply(model, x))
        wanted = nn.max_pool(x, (3, 3), (1, 1), padding)
        np.testing.assert_array_equal(max_pool(x, 3, 1, padding), wanted)
    for refused in (Conv(4, (2, 3), "SAME"), Conv(4, (3, 3), "valid")):
        with pytest.raises(pfl.InputError, match="padding must be a whole number, 'VALID', or 'S"):
            refused.init(jax.random.key(1), x)
    with pytest.raises(pfl.InputError, match="padding must be a whole number"):
        max_pool(x, 2, padding="SAME")
