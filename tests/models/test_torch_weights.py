"""Converted weights give PyTorch's outputs, as NumPy loops compute them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as pfl
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.models.recurrent import CharLSTM
from fedjax_pfl.models.task import as_task
from tests.models import torch_forward as torch

IMAGES = np.random.default_rng(3).normal(size=(3, 2, 8, 10)).astype(np.float32)  # channels first
SHAPE = (8, 10, 2)
# The second convolution leaves 3 channels of 1x2 pixels; the layer behind them is square.
STATE = torch.state_of(c1=(4, 2, 3, 3), b1=(4,), c2=(3, 4, 3, 3), fc=(6, 6), out=(5, 6))


def torch_cnn(x, state):
    x = torch.batch_norm(torch.conv2d(x, state, "c1"), state, "b1")
    x = torch.relu(torch.conv2d(torch.relu(torch.max_pool(x)), state, "c2"))
    x = torch.relu(torch.linear(torch.flatten(x), state, "fc"))
    return torch.linear(x, state, "out")


WANTED = torch_cnn(IMAGES, STATE)


def outputs(network, model, inputs):
    inputs = inputs.transpose(0, 2, 3, 1) if inputs.ndim == 4 else inputs
    return as_task(network).predict(model, jnp.asarray(inputs))


def assert_close(result, wanted):
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


class Net(nn.Module):
    """`torch_cnn` of Flax's layers, whose names and their alphabet say nothing."""

    flat: str = "channels last"

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(not train, name="y")(nn.Conv(4, (3, 3), padding="VALID", name="z")(x))
        x = nn.relu(nn.max_pool(x, (2, 2), (2, 2)))
        x = nn.relu(nn.Conv(3, (3, 3), padding="VALID", name="a")(x))
        if self.flat == "channels first":
            x = x.transpose(0, 3, 1, 2)
        if self.flat == "hidden":
            x = jnp.stack([x[:, :, 0].reshape(-1, 3), x[:, :, 1].reshape(-1, 3)], 1)
        x = x.reshape(x.shape[0], -1)
        return nn.Dense(5, name="n")(nn.relu(nn.Dense(6, name="o")(x)))


class OfNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.z = nnx.Conv(2, 4, (3, 3), padding="VALID", rngs=rngs)
        self.y = nnx.BatchNorm(4, rngs=rngs)
        self.a = nnx.Conv(4, 3, (3, 3), padding="VALID", rngs=rngs)
        self.o = nnx.Linear(6, 6, rngs=rngs)
        self.n = nnx.Linear(6, 5, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(nnx.max_pool(self.y(self.z(x)), (2, 2), (2, 2)))
        x = nnx.relu(self.a(x)).reshape(x.shape[0], -1)
        return self.n(nnx.relu(self.o(x)))


@pytest.mark.costly
@pytest.mark.parametrize(
    ("network", "before"),
    [(Net(), (1, 2, 3)), (Net("channels first"), ()), (OfNnx, (1, 2, 3))],
    ids=["", "first", "nnx"],
)
def test_a_cnn_gives_the_same_outputs(network, before):
    model = pfl.models.from_torch(STATE, network, SHAPE, flattened={"o": before})
    assert_close(outputs(network, model, IMAGES), WANTED)


def test_a_dense_network_of_coloured_images():
    state, network = torch.state_of(**{"1": (4, 160), "3": (5, 4)}), MLP(5, (4,))
    x = torch.relu(torch.linear(torch.flatten(IMAGES), state, "1"))
    wanted = torch.linear(x, state, "3")
    assert_close(outputs(network, pfl.models.from_torch(state, network, SHAPE), IMAGES), wanted)


@pytest.mark.costly
def test_recurrent_layers_and_embeddings():
    rng = np.random.default_rng(0)
    state = torch.state_of(emb=(7, 3), out=(5, 4))
    del state["emb.bias"]
    state["emb.weight"][0] = 0
    for layer, width in enumerate((3, 4)):
        sizes = {"weight_ih": (16, width), "weight_hh": (16, 4), "bias_ih": 16, "bias_hh": 16}
        for name, size in sizes.items():
            state[f"lstm.{name}_l{layer}"] = rng.normal(size=size).astype(np.float32)
    ids = rng.integers(1, 7, (3, 6))
    last = torch.lstm(state["emb.weight"][ids], state, "lstm")
    network = CharLSTM(5, 7, hidden=4, embedding_size=3)
    model = pfl.models.from_torch(state, network, (6,), input_dtype="int32")
    assert_close(outputs(network, model, ids), torch.linear(last, state, "out"))
    state["emb.weight"][0] = 1
    with pytest.warns(UserWarning, match=r"emb.weight: embedding takes id 0 for padding"):
        pfl.models.from_torch(state, network, (6,), input_dtype="int32")


def test_a_gru_is_refused():
    """Its new gate scales one of the two biases, so that their sum is another network."""
    rng = np.random.default_rng(0)
    sizes = {"weight_ih": (12, 3), "weight_hh": (12, 4), "bias_ih": 12, "bias_hh": 12}
    state = torch.state_of(emb=(7, 3), out=(5, 4))
    del state["emb.bias"]
    for name, size in sizes.items():
        state[f"gru.{name}_l0"] = rng.normal(size=size).astype(np.float32)
    network = CharLSTM(5, 7, hidden=4, embedding_size=3, layers=1)
    with pytest.raises(pfl.InputError, match="A GRU's layers can't be converted"):
        pfl.models.from_torch(state, network, (6,), input_dtype="int32")


class Tensor:
    """What a PyTorch tensor has of NumPy's."""

    dtype = "torch.bfloat16"

    def __init__(self, values):
        self.values = values

    def detach(self):
        return self

    cpu = detach

    def float(self):
        return self.values


def test_tensors_are_read_and_values_of_other_types_refused():
    state, network = torch.state_of(fc=(5, 160)), MLP(5, ())
    wanted = pfl.models.from_torch(state, network, SHAPE)
    result = pfl.models.from_torch({name: Tensor(v) for name, v in state.items()}, network, SHAPE)
    jax.tree.map(np.testing.assert_array_equal, result, wanted)
    with pytest.raises(pfl.InputError, match=r"state_dict at 'fc.bias' must be numbers, got 'str"):
        pfl.models.from_torch(state | {"fc.bias": np.asarray("x")}, network, SHAPE)
    with pytest.raises(pfl.InputError, match="must be numbers, got 'complex64'"):
        pfl.models.from_torch(state | {"fc.bias": np.zeros(5, np.complex64)}, network, SHAPE)


def test_names_say_which_layer_is_which():
    state, network = torch.state_of(second=(5, 4), first=(4, 160)), MLP(5, (4,))
    with pytest.raises(pfl.InputError, match=r"second.weight \[5, 4\] for params/fc_0/kernel"):
        pfl.models.from_torch(state, network, SHAPE)
    for names in ({"first": "fc_0"}, {"second": "head"}, {"second": "head", "first": "fc_0"}):
        model = pfl.models.from_torch(state, network, SHAPE, names=names)
        np.testing.assert_array_equal(model["params"]["head"]["kernel"], state["second.weight"].T)
    equal = {name.replace("second", "head"): value for name, value in state.items()}
    model = pfl.models.from_torch(equal, network, SHAPE)
    np.testing.assert_array_equal(model["params"]["head"]["kernel"], state["second.weight"].T)
    for names, message in (
        ({"frist": "fc_0"}, "Unknown layer of the state_dict 'frist'. Did you mean 'first'"),
        ({"first": "fc"}, "Unknown layer of the network 'fc'. Did you mean 'fc_0'"),
        ({"first": "head", "second": "head"}, "names must be different layers"),
    ):
        with pytest.raises(pfl.InputError, match=message):
            pfl.models.from_torch(state, network, SHAPE, names=names)


def test_layers_of_one_side_only():
    state, network = torch.state_of(a=(4, 160), b=(4, 4), out=(5, 4)), MLP(5, (4,))
    with pytest.raises(pfl.InputError, match=r"3 linear layers and embeddings \(a, b, out\) and"):
        pfl.models.from_torch(state, network, SHAPE)
    names = {"a": "fc_0", "out": "head"}
    with pytest.raises(pfl.InputError, match=r"not in the network: b.weight, b.bias. names="):
        pfl.models.from_torch(state, network, SHAPE, names=names)
    with pytest.warns(UserWarning, match=r"A part of .* not in the network: b.weight, b.bias\."):
        converted = pfl.models.from_torch(state, network, SHAPE, names=names, partial=True)
    assert set(converted["params"]) == {"fc_0", "head"}
    part = {name: value for name, value in state.items() if name in ("a.weight", "out.weight")}
    with pytest.raises(
        pfl.InputError, match=r"none is given: params/fc_0/bias, params/head/bias\. "
    ):
        pfl.models.from_torch(part, network, SHAPE)
    with pytest.warns(UserWarning, match="none is given: params/fc_0/bias, params/head/bias"):
        model = pfl.models.from_torch(part, network, SHAPE, partial=True)
    assert jax.tree.map(np.shape, model) == {
        "params": {"fc_0": {"kernel": (160, 4)}, "head": {"kernel": (4, 5)}}
    }


def test_an_order_that_can_not_be_told_is_asked_for():
    with pytest.raises(
        pfl.InputError, match=r"from_torch\(flattened=\{'o': \(height, .*, or \{'o': \(\)\} if"
    ):
        pfl.models.from_torch(STATE, Net(), SHAPE)
    # Its columns come one after the other, each with its channels: here that is [1, 2, 3] flat.
    model = pfl.models.from_torch(STATE, Net("hidden"), SHAPE, flattened={"o": (1, 2, 3)})
    assert_close(outputs(Net("hidden"), model, IMAGES), WANTED)
    as_it_is = pfl.models.from_torch(STATE, Net("hidden"), SHAPE, flattened={"o": ()})
    np.testing.assert_array_equal(as_it_is["params"]["o"]["kernel"], STATE["fc.weight"].T)
    with pytest.raises(pfl.InputError, match="Unknown layer in flattened 'p'"):
        pfl.models.from_torch(STATE, Net(), SHAPE, flattened={"p": (1, 2, 3)})
    with pytest.raises(pfl.InputError, match="'o' may take a flattened image"):
        pfl.models.from_torch(STATE, Net(), SHAPE, flattened={"o": (1, 1, 5)})


class HeadFirst(nnx.Module):
    def __init__(self, *, rngs):
        self.n = nnx.Linear(18, 4, rngs=rngs)
        self.a = nnx.Conv(1, 2, (3, 3), padding="VALID", rngs=rngs)

    def __call__(self, x):
        return self.n(self.a(x).reshape(x.shape[0], -1))


def test_a_convolution_may_be_an_attribute_after_the_layer_that_it_precedes():
    state, names = torch.state_of(conv=(2, 1, 3, 3), fc=(4, 18)), {"conv": "a", "fc": "n"}
    with pytest.raises(pfl.InputError, match=r"flattened=\{'n': "):
        pfl.models.from_torch(state, HeadFirst, (5, 5, 1), names=names)


class Upward(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.ConvTranspose(2, (3, 3), (2, 2))(x).mean((1, 2))


def test_transposed_convolutions_are_refused():
    with pytest.raises(pfl.InputError, match="Weights of transposed convolutions can't be"):
        pfl.models.from_torch(torch.state_of(up=(2, 2, 3, 3)), Upward(), SHAPE)
