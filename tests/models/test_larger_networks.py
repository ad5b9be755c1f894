"""ResNet-18, transformers and an LSTM: their layers by hand, and a step of each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from fedjax_pfl.models.networks import CharLSTM, TextTransformer
from fedjax_pfl.models.normalization import GroupNorm


def made(net, inputs):
    """(parameters as NumPy arrays, outputs)."""
    model = jax.jit(net.init)(jax.random.key(0), inputs)
    model = jax.tree.map(lambda x: x + 0.1 * np.arange(x.size).reshape(x.shape) / x.size, model)
    return jax.tree.map(np.asarray, model["params"]), np.asarray(jax.jit(net.apply)(model, inputs))


def test_group_norm_by_hand():
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 4)).astype(np.float32)
    w, out = made(GroupNorm(2), x)
    parts = x.reshape(2, 6, 2, 2)
    normal = parts - parts.mean((1, 3), keepdims=True)
    normal /= np.sqrt((normal**2).mean((1, 3), keepdims=True) + 1e-5)
    np.testing.assert_allclose(out, normal.reshape(x.shape) * w["scale"] + w["bias"], 1e-5, 1e-5)


@pytest.mark.costly
def test_lstm_passes_over_padding():
    """Its numbers are compared in `test_torch_weights`."""
    ids = jnp.array([[1, 2, 0, 3], [1, 2, 3, 0], [0, 0, 0, 0]])
    w, out = made(CharLSTM(3, 5, hidden=4, embedding_size=2), ids)
    np.testing.assert_array_equal(out[0], out[1])
    np.testing.assert_array_equal(out[2], w["head"]["bias"])


def dense(x, layer):
    return x @ layer["kernel"] + layer["bias"]


def layer_norm(x, layer):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * layer["scale"] + layer["bias"]


def encoder_block(x, block, allowed=True):
    """Two heads of three channels each; `allowed` [T, T]: to which positions each one attends."""
    q, k, v = np.split(dense(layer_norm(x, block["norm_0"]), block["attention"]["qkv"]), 3, -1)
    heads = []
    for at in (slice(0, 3), slice(3, 6)):
        weights = np.exp(q[:, at] @ k[:, at].T / np.sqrt(3)) * allowed
        heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, at])
    x = x + dense(np.concatenate(heads, -1), block["attention"]["proj"])
    hidden = dense(layer_norm(x, block["norm_1"]), block["fc_0"])
    return x + dense(hidden * (1 + erf(hidden / np.sqrt(2))) / 2, block["fc_1"])


TEXTS = np.array([[1, 2, 0, 3], [4, 0, 0, 0], [0, 0, 0, 0]])


@pytest.mark.costly
def test_text_transformer_by_hand():
    w, out = made(TextTransformer(3, 5, hidden=6, depth=2, heads=2), jnp.asarray(TEXTS))
    for ids, logits in zip(TEXTS, out, strict=True):
        there = ids != 0
        x = np.where(there[:, None], w["embedding"]["table"][ids], 0) + w["positions"]["table"]
        x = x[there]
        for name in ("block_0", "block_1"):
            x = encoder_block(x, w[name])
        mean = layer_norm(x, w["norm"]).mean(0) if there.any() else np.zeros(6)
        np.testing.assert_allclose(logits, dense(mean, w["head"]), 2e-5, 2e-5)


@pytest.mark.costly
@pytest.mark.parametrize("tied", [False, True])
def test_text_transformer_with_an_output_for_each_token(tied):
    net = TextTransformer(5, 5, hidden=6, depth=1, heads=2, tied=tied, per_token=True)
    w, out = made(net, jnp.asarray(TEXTS))
    assert ("head" in w) != tied
    for ids, logits in zip(TEXTS, out, strict=True):
        there = ids != 0
        x = np.where(there[:, None], w["embedding"]["table"][ids], 0) + w["positions"]["table"]
        allowed = np.tril(np.ones((4, 4))) * (there[None] | np.eye(4, dtype=bool))
        x = layer_norm(encoder_block(x, w["block_0"], allowed), w["norm"])
        wanted = x @ w["embedding"]["table"].T if tied else dense(x, w["head"])
        np.testing.assert_allclose(logits, wanted, 5e-5, 5e-5)
