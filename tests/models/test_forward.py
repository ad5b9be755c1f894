"""What the networks compute, against forward passes written with XLA's own operations.

Scales of batch normalization alternate in sign and every bias lies below zero, so that no two of
ReLU, pooling and normalization commute unnoticed; one sample of the batch is masked out.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_pfl.models.networks import DLA, make_model
from fedjax_pfl.models.task import LinenTask

VALID = np.array([True, True, False, True])


def relu(x):
    return jnp.maximum(x, 0)


def conv(x, layer, stride=1, padding=0):
    around = ((padding, padding), (padding, padding))
    out = lax.conv_general_dilated(
        x,
        layer["kernel"],
        (stride, stride),
        around,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision="highest",
    )
    return out + layer.get("bias", 0)


def pool(x, size=2, stride=2, padding=0):
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return lax.reduce_window(
        x, -np.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), around
    )


def norm(x, layer):
    seen = x[VALID].reshape(-1, x.shape[-1])
    return (x - seen.mean(0)) / jnp.sqrt(seen.var(0) + 1e-5) * layer["scale"] + layer["bias"]


def dense(x, layer):
    return jnp.dot(x, layer["kernel"], precision="highest") + layer["bias"]


def flat(x):
    return x.reshape(len(x), -1)


def conv_norm(x, layer, stride=1, padding=1):
    return norm(conv(x, layer["conv"], stride, padding), layer["bn"])


def residual(x, block, stride):
    out = relu(conv_norm(x, block["first"], stride))
    out = conv_norm(out, block["second"])
    return relu(out + (conv_norm(x, block["shortcut"], stride, 0) if "shortcut" in block else x))


def pooled_cnn(net, x):
    """FedAvg's CNN: convolution, ReLU, pooling, twice, then one hidden layer."""
    for name in ("conv_0", "conv_1"):
        x = pool(relu(conv(x, net[name])))
    return dense(relu(dense(flat(x), net["fc"])), net["head"])


def mtfl_cnn(net, x):
    for i in range(2):
        x = norm(pool(relu(conv(x, net[f"conv_{i}"]))), net[f"bn_{i}"])
    return dense(relu(dense(flat(x), net["fc"])), net["head"])


def two_hidden(net, x):
    x = relu(dense(flat(x), net["fc_0"]))
    return dense(relu(dense(x, net["fc_1"])), net["head"])


def pfedla_lenet_bn(net, x):
    for i in range(2):
        x = pool(relu(norm(conv(x, net[f"conv_{i}"]), net[f"bn_{i}"])))
    return two_hidden(net, x)


def lenet5(net, x):
    x = pool(relu(conv(x, net["conv_0"], padding=2)))
    return two_hidden(net, pool(relu(conv(x, net["conv_1"]))))


def tfconvnet(net, x):
    for name in ("conv_0", "conv_1"):
        x = pool(relu(conv(x, net[name])))
    x = relu(conv(x, net["conv_2"]))
    return dense(relu(dense(flat(x), net["fc"])), net["head"])


def resnet8(net, x):
    x = pool(relu(conv_norm(x, net["stem"])), 3, 2, 1)
    for i, stride in enumerate((1, 2, 2)):
        x = residual(x, net[f"block_{i}"], stride)
    return dense(x.mean((1, 2)), net["head"])


def tree(x, net, level, stride):
    joined = []
    if level == 2:
        joined = [residual(x, net["bypass"], stride), tree(x, net["level_1"], 1, stride)]
        x, stride = joined[-1], 1
    left = residual(x, net["left"], stride)
    joined += [left, residual(left, net["right"], 1)]
    return relu(conv_norm(jnp.concatenate(joined, -1), net["root"], padding=0))


# (channels, level, stride): as in the network itself, trees of both levels and of both strides.
SMALL_TREES = ((4, 1, 1), (5, 2, 2), (4, 1, 2))


def small_dla(net, x):
    for i in range(3):
        x = relu(conv_norm(x, net[f"conv_{i}"]))
    for i, (_, level, stride) in enumerate(SMALL_TREES):
        x = tree(x, net[f"tree_{i}"], level, stride)
    return dense(x.mean((1, 2)), net["head"])


def made(name, shape, **options):
    return make_model(name, shape, 5, **options)


# Networks as made by name, but for DLA, whose 16 million parameters take long to compile; sizes of
# images that leave a row over in a pooling or a stride where the network takes them.
NETWORKS = {
    "mtfl_cnn": (mtfl_cnn, (15, 14, 3), lambda s: made("mtfl_cnn", s, dropout=0.0)),
    "cnn": (pooled_cnn, (17, 16, 2), lambda s: made("cnn", s)),
    "pfedla_lenet_bn": (pfedla_lenet_bn, (17, 16, 3), lambda s: made("pfedla_lenet_bn", s)),
    "resnet8": (resnet8, (13, 12, 3), lambda s: made("resnet8", s)),
    "lenet5": (lenet5, (15, 14, 1), lambda s: made("lenet5", s)),
    "tfconvnet": (tfconvnet, (21, 19, 3), lambda s: made("tfconvnet", s)),
    "dla": (small_dla, (8, 8, 3), lambda s: DLA(5, (2, 2, 3), SMALL_TREES)),
}


def drawn(task, shape):
    """A model whose scales have either sign and whose biases lie below zero."""
    inputs = jax.ShapeDtypeStruct((len(VALID), *shape), jnp.float32)
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        kind = path[-1].key
        if kind == "bias":
            return np.float32(rng.uniform(-0.4, -0.2, leaf.shape))
        if kind == "scale":
            return np.float32(rng.uniform(0.8, 1.2, leaf.shape) * (-1) ** np.arange(leaf.size))
        if kind in ("mean", "var"):
            return np.ones(leaf.shape, np.float32)
        fan_in = np.prod(leaf.shape[:-1])
        return rng.normal(size=leaf.shape).astype(np.float32) * np.float32((2 / fan_in) ** 0.5)

    shapes = jax.eval_shape(task.initial_model, jax.random.key(0), inputs)
    return jax.tree_util.tree_map_with_path(draw, shapes)


DEEP = ("dla", "resnet8")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.costly] if n in DEEP else []) for n in NETWORKS],
)
def test_forward(name):
    reference, shape, make = NETWORKS[name]
    task = LinenTask(make(shape))
    model = drawn(task, shape)
    x = np.random.default_rng(1).normal(size=(len(VALID), *shape)).astype(np.float32)
    x[~VALID] = 50  # mustn't reach the others through the statistics
    got = jax.jit(lambda m, x: task.apply(m, x, True, None, VALID)[0])(model, x)[VALID]
    want = jax.jit(reference)(model["params"], x)[VALID]
    assert np.std(want) > 0.1  # or else everything agrees
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "norm", "dropout"),
    [
        ("cnn", None, 0),
        ("femnist_cnn", None, 0),
        ("lenet5", None, 0),
        ("lenet5_unpadded", None, 0),
        ("mtfl_cnn", "after_pool", 0.5),
        ("pfedla_karhoutam", None, 0),
        ("pfedla_karhoutam_bn", "before_relu", 0),
        ("pfedla_lenet", None, 0),
        ("pfedla_lenet_bn", "before_relu", 0),
        ("plga_cnn", None, 0),
        ("sattler_convnet", None, 0),
        ("spfl_cnn", None, 0),
        ("tfconvnet", None, 0),
    ],
)
def test_norm_and_dropout_as_published(name, norm, dropout):
    net = made(name, (32, 32, 3))
    assert (net.norm, net.dropout) == (norm, dropout)


def test_dropout_of_textcnn():
    assert make_model("textcnn", (20,), 4, vocab_size=50, hidden=8).dropout == 0.8


@pytest.mark.costly
def test_dropout_lies_behind_the_hidden_layer():
    """Half of what the head sees is dropped in training, the other half doubled."""
    shape = (10, 10, 1)
    net, plain = made("mtfl_cnn", shape), made("mtfl_cnn", shape, dropout=0.0)
    model = drawn(LinenTask(net), shape)
    x = np.random.default_rng(1).normal(size=(len(VALID), *shape)).astype(np.float32)

    @partial(jax.jit, static_argnums=0)
    def features(net, model):
        options = {"mutable": ["batch_stats"], "method": "features", "train": True}
        return net.apply(model, x, rngs={"dropout": jax.random.key(2)}, **options)[0]

    dropped, whole = np.asarray(features(net, model)), np.asarray(features(plain, model))
    kept = dropped != 0
    assert 0.45 < np.mean(kept[whole > 0]) < 0.55
    np.testing.assert_allclose(dropped[kept], 2 * whole[kept], rtol=1e-5)
