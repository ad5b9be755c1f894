"""A network of one's own gets a name."""

import functools

import flax.linen as nn
import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.cli import build, flags


@pytest.fixture
def known():
    before = dict(pfl.models.MODELS)
    yield pfl.models.MODELS
    pfl.models.MODELS.clear()
    pfl.models.MODELS.update(before)


def test_a_name_is_registered_once(known):
    @pfl.models.register_model("tiny_one")
    def tiny(input_shape, num_classes, initializer, *, bias: bool = True):
        return nn.Dense(num_classes, use_bias=bias)

    made = pfl.models.make_model("tiny_one", (3,), 2, bias=False)
    assert made == nn.Dense(2, use_bias=False)
    assert pfl.models.register_model("tiny_one")(tiny) is tiny
    with pytest.raises(pfl.InputError, match="The model 'cnn' is registered already, by another"):
        pfl.models.register_model("cnn")(tiny)
    for name, given in (("", tiny), ("a", 3)):
        with pytest.raises(pfl.InputError):
            pfl.models.register_model(name)(given)


def test_the_example_is_known_to_the_scripts(tmp_path):
    signal, lengths = np.zeros((80, 2)), np.array([40, 40])
    subject = {"labels": [0, 1], "who": [0, 1]}
    np.savez(tmp_path / "a.npz", recordings=signal, lengths=lengths, **subject)
    words = ["run", f"--dataset=recordings:{tmp_path / 'a.npz'}", "--data_option=window=5"]
    words += ["--import_file=example:sensor_network", "--model=sensor_network"]
    made = build.load_inputs(flags.parse([*words, "--model_option=width=4"]))
    assert made.partition.names == ("who_0", "who_1")
    assert made.identity["the model"] != build.load_inputs(flags.parse(words)).identity["the model"]
    with pytest.raises(pfl.InputError, match=r"must be \(time, 1, channels\) for sensor_network"):
        pfl.models.make_model("sensor_network", (8, 8, 1), 2)


def test_partial_functions_are_registered(known):
    make = functools.partial(pfl.models.make_model, "cnn")
    assert pfl.models.register_model("two")(make) is make
    assert pfl.models.register_model("two")(functools.partial(pfl.models.make_model, "cnn"))
    with pytest.raises(pfl.InputError, match="'two' is registered already, by another function"):
        pfl.models.register_model("two")(functools.partial(pfl.models.make_model, "mlp"))
