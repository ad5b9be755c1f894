"""Weights under PFLlib's and torchvision's names: outputs are those of NumPy forms of theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.cnn import CNN
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.models.recurrent import CharLSTM
from fedjax_pfl.models.resnet import ResNet18
from fedjax_pfl.models.task import as_task
from fedjax_pfl.models.text import FastText, TextCNN
from tests.models import torch_forward as torch

RNG = np.random.default_rng(5)
IMAGES = RNG.normal(size=(2, 3, 20, 22)).astype(np.float32)  # channels first
VECTORS = RNG.normal(size=(3, 12)).astype(np.float32)
TEXTS = RNG.integers(1, 9, (3, 7))


def fed_avg_cnn(x, state, first="conv1.0", second="conv2.0", hidden="fc1.0"):
    for name in (first, second):
        x = torch.max_pool(torch.relu(torch.conv2d(x, state, name)))
    x = torch.relu(torch.linear(torch.flatten(x), state, hidden))
    return torch.linear(x, state, "fc")


def cifar_net(x, state):
    for name in ("conv1", "conv2"):
        x = torch.max_pool(torch.relu(torch.conv2d(x, state, name)))
    x = torch.flatten(x)
    for name in ("fc1", "fc2"):
        x = torch.relu(torch.linear(x, state, name))
    return torch.linear(x, state, "fc")


def dense(*names):
    def forward(x, state):
        x = torch.flatten(x)
        for name in names[:-1]:
            x = torch.relu(torch.linear(x, state, name))
        return torch.linear(x, state, names[-1])

    return forward


def fast_text(ids, state):
    mean = state["embedding.weight"][ids].mean(1)
    return torch.linear(torch.linear(mean, state, "fc1"), state, "fc")


def text_cnn(ids, state):
    x = state["embedding.weight"][ids].transpose(0, 2, 1)[..., None]
    state = {name: v[..., None] if v.ndim == 3 else v for name, v in state.items()}
    names = ("conv1.0", "conv2.0", "conv3.0")
    parts = [torch.relu(torch.conv2d(x, state, name)).max((2, 3)) for name in names]
    return torch.linear(np.concatenate(parts, 1), state, "fc")


def state_of(**shapes):
    """Layers of these weights, in their order; the embedding of padding is 0."""
    state = torch.state_of(2, **{name.replace("__", "."): size for name, size in shapes.items()})
    if "embedding.bias" in state:
        del state["embedding.bias"]
        state["embedding.weight"][0] = 0
    return state


# Two poolings of 5x5 convolutions leave 2x2 pixels of 20x22.
CONVOLUTIONS = {"first": (4, 3, 5, 5), "second": (6, 4, 5, 5), "hidden": (24, 24), "fc": (5, 24)}
EARLIER = {name: CONVOLUTIONS[one] for name, one in
           {"conv1": "first", "conv2": "second", "fc1": "hidden", "fc": "fc"}.items()}  # fmt: skip
FED_AVG = {f"{name}__0" if name != "fc" else name: size for name, size in EARLIER.items()}
PFLLIB = {
    "FedAvgCNN": (state_of(**FED_AVG), fed_avg_cnn, CNN(5, (4, 6), hidden=24), IMAGES),
    "earlier FedAvgCNN": (
        state_of(**EARLIER),
        lambda x, state: fed_avg_cnn(x, state, "conv1", "conv2", "fc1"),
        CNN(5, (4, 6), hidden=24),
        IMAGES,
    ),
    "CifarNet": (
        state_of(conv1=(4, 3, 5, 5), conv2=(6, 4, 5, 5), fc1=(5, 24), fc2=(5, 5), fc=(5, 5)),
        cifar_net,
        CNN(5, (4, 6), hidden=(5, 5)),
        IMAGES,
    ),
    "DNN": (state_of(fc1=(5, 1320), fc=(5, 5)), dense("fc1", "fc"), MLP(5, (5,)), IMAGES),
    "FedAvgMLP": (state_of(fc1=(5, 12), fc2=(5, 5)), dense("fc1", "fc2"), MLP(5, (5,)), VECTORS),
    "Mclr_Logistic": (state_of(fc=(5, 1320)), dense("fc"), MLP(5, ()), IMAGES),
    "AmazonMLP": (
        state_of(encoder__0=(5, 12), encoder__2=(5, 5), encoder__4=(5, 5), fc=(5, 5)),
        dense("encoder.0", "encoder.2", "encoder.4", "fc"),
        MLP(5, (5, 5, 5)),
        VECTORS,
    ),
    "fastText": (
        state_of(embedding=(9, 5), fc1=(5, 5), fc=(5, 5)), fast_text, FastText(5, 9, 5), TEXTS,
    ),
    "TextCNN": (
        state_of(embedding=(9, 4), conv1__0=(2, 4, 3), conv2__0=(2, 4, 4), conv3__0=(2, 4, 5),
                 fc=(5, 6)),
        text_cnn,
        TextCNN(5, 9, hidden=4, channels=2),
        TEXTS,
    ),
}  # fmt: skip


def split(state):
    """The state of PFLlib's BaseHeadSplit."""
    return {f"head{name[2:]}" if name.startswith("fc.") else f"base.{name}": value
            for name, value in state.items()}  # fmt: skip


def assert_outputs(network, inputs, wanted, first, *others):
    """The first state has the outputs, and the others give the same model."""
    shown = inputs.transpose(0, 2, 3, 1) if inputs.ndim == 4 else inputs
    dtype = "int32" if inputs.dtype.kind == "i" else "float32"
    model, *same = (
        pfl.models.from_torch(state, network, shown.shape[1:], input_dtype=dtype)
        for state in (first, *others)
    )
    for one in same:
        jax.tree.map(np.testing.assert_array_equal, one, model)
    outputs = jax.jit(as_task(network).predict)(model, jnp.asarray(shown))
    assert np.abs(wanted).max() > 0.1
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize("name", PFLLIB)
def test_a_network_of_pfllib_gives_the_same_outputs(name):
    state, forward, network, inputs = PFLLIB[name]
    as_sorted = dict(sorted(state.items()))  # as safetensors files are
    wrapped = {f"_orig_mod.module.{name}": value for name, value in split(state).items()}
    given = (state, as_sorted, split(state), wrapped)
    assert_outputs(network, inputs, forward(inputs, state), *given)


def small_resnet():
    """A state_dict of torchvision's ResNet-18 with few channels."""
    shapes, norms = {"conv1": (4, 3, 7, 7)}, {"bn1": (4,)}
    before = 4
    for stage, width in enumerate((4, 6, 8, 10)):
        for place in (0, 1):
            at = f"layer{stage + 1}.{place}."
            shapes |= {f"{at}conv1": (width, before, 3, 3), f"{at}conv2": (width, width, 3, 3)}
            norms |= {f"{at}bn1": (width,), f"{at}bn2": (width,)}
            if before != width:
                shapes[f"{at}downsample.0"] = (width, before, 1, 1)
                norms[f"{at}downsample.1"] = (width,)
            before = width
    convolutions = torch.state_of(7, **shapes)
    weights = {name: x for name, x in convolutions.items() if name.endswith(".weight")}
    return weights | torch.state_of(8, **norms, fc=(5, 10))


def resnet_18(x, state):
    x = torch.relu(torch.batch_norm(torch.conv2d(x, state, "conv1", 3, 2), state, "bn1"))
    x = torch.wide_max_pool(x)
    for stage in range(4):
        for place in (0, 1):
            at = f"layer{stage + 1}.{place}."
            stride = 2 if stage and not place else 1
            y = torch.conv2d(x, state, f"{at}conv1", 1, stride)
            y = torch.relu(torch.batch_norm(y, state, f"{at}bn1"))
            y = torch.batch_norm(torch.conv2d(y, state, f"{at}conv2", 1), state, f"{at}bn2")
            if stride == 2:
                x = torch.conv2d(x, state, f"{at}downsample.0", 0, 2)
                x = torch.batch_norm(x, state, f"{at}downsample.1")
            x = torch.relu(x + y)
    return torch.linear(x.mean((2, 3)), state, "fc")


RESNET = small_resnet()
SMALL = ResNet18(5, (4, 6, 8, 10), large=True)


@pytest.mark.costly
def test_torchvisions_resnet_18_gives_the_same_outputs():
    images = RNG.normal(size=(2, 3, 40, 36)).astype(np.float32)
    wanted = resnet_18(images, RESNET)
    assert_outputs(SMALL, images, wanted, RESNET, dict(sorted(RESNET.items())), split(RESNET))


@pytest.mark.costly
def test_shapes_of_other_networks_are_refused():
    thirty_four = RESNET | {"layer1.2.conv1.weight": RESNET["layer1.1.conv1.weight"]}
    with pytest.raises(
        pfl.InputError, match=r"has 21 convolutions .* so their order tells nothing"
    ):
        pfl.models.from_torch(thirty_four, SMALL, (32, 32, 3))
    with pytest.raises(pfl.InputError, match=r"conv1.weight \[4, 3, 7, 7\] for params/stem/conv/k"):
        pfl.models.from_torch(RESNET, ResNet18(5, (4, 6, 8, 10)), (32, 32, 3))
    grouped = {name: value for name, value in RESNET.items() if "running" not in name}
    model = pfl.models.from_torch(grouped, ResNet18(5, (4, 6, 8, 10), True, 2), (32, 32, 3))
    scale = model["params"]["block_2"]["shortcut"]["gn"]["scale"]
    np.testing.assert_array_equal(scale, RESNET["layer2.0.downsample.1.weight"])
    with pytest.raises(pfl.InputError, match=r"none is given: batch_stats/block_0/first/bn/mean, "):
        pfl.models.from_torch(grouped, SMALL, (32, 32, 3))


def test_pfllibs_lstm_computes_something_else():
    sizes = {"weight_ih": (16, 4), "weight_hh": (16, 4), "bias_ih": 16, "bias_hh": 16}
    state = state_of(embedding=(9, 4), fc=(5, 4))
    for layer in (0, 1):
        state |= {
            f"lstm.{name}_l{layer}": np.zeros(size, np.float32) for name, size in sizes.items()
        }
    network = CharLSTM(5, 9, hidden=4, embedding_size=4)
    with pytest.raises(pfl.InputError, match="PFLlib's LSTMNet, which has a ReLU before"):
        pfl.models.from_torch(state, network, (7,), input_dtype="int32")
    model = pfl.models.from_torch(state, network, (7,), names={"fc": "head"}, input_dtype="int32")
    np.testing.assert_array_equal(model["params"]["head"]["kernel"], state["fc.weight"].T)
