"""Weights of timm's and Hugging Face's vision transformers, by NumPy forms of those networks."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.task import as_task
from fedjax_pfl.models.vit import ViT
from tests.models import torch_forward as torch

SIZE, CHANNELS, PATCH, WIDTH, HEADS, DEPTH, CLASSES = (6, 8), 3, 2, 12, 3, 11, 5
TOKENS = 1 + 3 * 4
SHAPE = (*SIZE, CHANNELS)
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(2, CHANNELS, *SIZE)).astype(np.float32)
NETWORK = ViT(CLASSES, PATCH, WIDTH, DEPTH, HEADS)


def linear(state, name, inputs, outputs):
    state[f"{name}.weight"] = RNG.normal(size=(outputs, inputs)) / inputs**0.5
    state[f"{name}.bias"] = 0.3 * RNG.normal(size=outputs)


def norm(state, name):
    state[f"{name}.weight"], state[f"{name}.bias"] = 1 + 0.3 * RNG.normal(size=(2, WIDTH))


def made(names, attention):
    """A state_dict; `names` are those of class token, positions, patches, blocks, norm, head."""
    token, positions, patches, block, last, head = names
    state = {token: RNG.normal(size=(1, 1, WIDTH)), positions: RNG.normal(size=(1, TOKENS, WIDTH))}
    state[f"{patches}.weight"] = RNG.normal(size=(WIDTH, CHANNELS, PATCH, PATCH))
    state[f"{patches}.bias"] = RNG.normal(size=WIDTH)
    for n in range(DEPTH):
        at = block.format(n)
        first, second, (fc1, fc2) = attention["norms"][0], attention["norms"][1], attention["mlp"]
        norm(state, at + first)
        for name, wide in attention["layers"].items():
            linear(state, at + name, WIDTH, wide * WIDTH)
        norm(state, at + second)
        linear(state, at + fc1, WIDTH, 4 * WIDTH)
        linear(state, at + fc2, 4 * WIDTH, WIDTH)
    norm(state, last)
    linear(state, head, WIDTH, CLASSES)
    return {name: np.asarray(value, np.float32) for name, value in state.items()}


TIMM = made(
    ("cls_token", "pos_embed", "patch_embed.proj", "blocks.{}.", "norm", "head"),
    {"norms": ("norm1", "norm2"), "layers": {"attn.qkv": 3, "attn.proj": 1},
     "mlp": ("mlp.fc1", "mlp.fc2")},
)  # fmt: skip
HUGGING_FACE = made(
    (
        "vit.embeddings.cls_token", "vit.embeddings.position_embeddings",
        "vit.embeddings.patch_embeddings.projection", "vit.encoder.layer.{}.", "vit.layernorm",
        "classifier",
    ),
    {"norms": ("layernorm_before", "layernorm_after"),
     "layers": {f"attention.attention.{one}": 1 for one in ("query", "key", "value")}
     | {"attention.output.dense": 1}, "mlp": ("intermediate.dense", "output.dense")},
)  # fmt: skip


def layer_norm(x, state, name, epsilon):
    away = x - x.mean(-1, keepdims=True)
    normal = away / np.sqrt((away**2).mean(-1, keepdims=True) + epsilon)
    return normal * state[f"{name}.weight"] + state[f"{name}.bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))


def attend(q, k, v):
    """One sample, [T, heads, width of a head] each, to [T, width]."""
    out = np.zeros(q.shape)
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head].T / q.shape[2] ** 0.5
        weights = np.exp(scores - scores.max(1, keepdims=True))
        out[:, head] = weights / weights.sum(1, keepdims=True) @ v[:, head]
    return out.reshape(len(q), -1)


def tokens(state, patches, token, positions):
    x = torch.conv2d(IMAGES, state, patches, stride=PATCH)
    x = x.reshape(len(x), WIDTH, -1).transpose(0, 2, 1)
    first = np.repeat(state[token], len(x), 0)
    return np.concatenate([first, x], 1) + state[positions]


def timm_forward(state):
    x = tokens(state, "patch_embed.proj", "cls_token", "pos_embed")
    for n in range(DEPTH):
        at = f"blocks.{n}."
        y = torch.linear(layer_norm(x, state, at + "norm1", 1e-6), state, at + "attn.qkv")
        three = y.reshape(len(x), TOKENS, 3, HEADS, -1).transpose(2, 0, 1, 3, 4)
        mixed = np.stack([attend(*of_one) for of_one in zip(*three, strict=True)])
        x = x + torch.linear(mixed, state, at + "attn.proj")
        y = gelu(torch.linear(layer_norm(x, state, at + "norm2", 1e-6), state, at + "mlp.fc1"))
        x = x + torch.linear(y, state, at + "mlp.fc2")
    return torch.linear(layer_norm(x, state, "norm", 1e-6)[:, 0], state, "head")


def hugging_face_forward(state):
    at = "vit.embeddings."
    x = tokens(state, at + "patch_embeddings.projection", at + "cls_token",
               at + "position_embeddings")  # fmt: skip
    for n in range(DEPTH):
        at = f"vit.encoder.layer.{n}."
        y = layer_norm(x, state, at + "layernorm_before", 1e-12)
        q, k, v = (
            torch.linear(y, state, f"{at}attention.attention.{name}").reshape(
                *y.shape[:2], HEADS, -1
            )
            for name in ("query", "key", "value")
        )
        mixed = np.stack([attend(*of_one) for of_one in zip(q, k, v, strict=True)])
        x = x + torch.linear(mixed, state, at + "attention.output.dense")
        y = layer_norm(x, state, at + "layernorm_after", 1e-12)
        y = gelu(torch.linear(y, state, at + "intermediate.dense"))
        x = x + torch.linear(y, state, at + "output.dense")
    return torch.linear(layer_norm(x, state, "vit.layernorm", 1e-12)[:, 0], state, "classifier")


BOTH = pytest.mark.parametrize(
    ("state", "forward"),
    [(TIMM, timm_forward), (HUGGING_FACE, hugging_face_forward)],
    ids=["timm", "hugging_face"],
)


@pytest.mark.costly
@BOTH
def test_outputs_are_those_of_the_original_network(state, forward):
    wanted = forward(state)
    assert np.abs(wanted).max() > 0.5
    model = pfl.models.from_torch(state, NETWORK, SHAPE)
    made = as_task(NETWORK).predict(model, jnp.asarray(IMAGES.transpose(0, 2, 3, 1)))
    np.testing.assert_allclose(made, wanted, 1e-4, 1e-4)


@pytest.mark.costly
def test_a_bare_hugging_face_body_has_no_prefix():
    bare = {
        name.removeprefix("vit."): value
        for name, value in HUGGING_FACE.items()
        if not name.startswith("classifier")
    }
    with pytest.warns(UserWarning, match="none is given: params/head/bias, params/head/kernel"):
        model = pfl.models.from_torch(bare, NETWORK, SHAPE, partial=True)
    whole = pfl.models.from_torch(HUGGING_FACE, NETWORK, SHAPE)
    assert "head" not in model["params"]
    layer = [one["params"]["block_10"]["attention"]["qkv"]["kernel"] for one in (model, whole)]
    np.testing.assert_array_equal(*layer)


LONG = TIMM | {"pos_embed": np.zeros((1, 1 + TOKENS, WIDTH), np.float32)}
FLAT = HUGGING_FACE | {
    "vit.encoder.layer.1.attention.attention.key.weight": np.zeros((WIDTH, 2), np.float32)
}


@pytest.mark.parametrize(
    ("state", "options", "message"),
    [
        (TIMM, {"depth": 12}, "none is given: params/block_11/attention/proj/bias, "),
        (TIMM, {"depth": 2}, r"not in the network: block_2.norm_0.weight, .* and 102 more"),
        (
            {
                name: value
                for name, value in HUGGING_FACE.items()
                if "0.attention.attention.query.b" not in name
            },
            {},
            r"given: params/block_0/attention/qkv/bias, .*; given, but not in the network: block_",
        ),
        (
            TIMM | {"blocks.0.ls1.gamma": np.ones(WIDTH, np.float32)},
            {},
            r"not in the network: blocks.0.ls1.gamma\. ",
        ),
        (LONG, {}, r"embed.positions \[1, 14, 12\] for params/embed/positions \[1, 13, 12\]"),
        (
            FLAT,
            {},
            r"given: params/block_1/attention/qkv/kernel; .*: block_1.attention.query.weight",
        ),
        (TIMM, {"patch": 1}, r"embed.positions \[1, 13, 12\] for params/embed/positions \[1, 49, "),
    ],
)
def test_missing_and_other_arrays_are_refused(state, options, message):
    sizes = {"patch": PATCH, "width": WIDTH, "depth": DEPTH, "heads": HEADS} | options
    with pytest.raises(pfl.InputError, match=message):
        pfl.models.from_torch(state, ViT(CLASSES, **sizes), SHAPE)
