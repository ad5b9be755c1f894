"""Models out of a result, into the plain network and back into `initial_model`."""

import jax
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as pfl

pytestmark = pytest.mark.costly

DATA = pfl.load_dataset("digits")
PARTITION = pfl.make_partition("iid", DATA, 3, seed=0, train_samples=20, test_samples=5)
STORED = DATA.pool()[0][:7]
SCALE, SHIFT = pfl.data.input_scaling("default", DATA)
LORA = {"lora_rank": 2, "lora_alpha": 5.0}


def simulated(algorithm, model="mlp", **options):
    federation = pfl.federate(DATA, PARTITION, model, local_steps=2, learning_rate=0.3, **options)
    return pfl.simulate(pfl.make_algorithm(algorithm), federation, 2)


def applied(name, model):
    network = pfl.models.make_model(name, DATA.input_shape, DATA.num_outputs)
    return network.apply(model, STORED * SCALE + SHIFT)


def assert_close(outputs, wanted):
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-5)


def assert_begins(model, network, wanted):
    """A federation that begins with the model has its predictions."""
    one = pfl.federate(DATA, PARTITION, network, initial_model=model)
    assert one.initial_match.drawn == one.initial_match.unused == one.initial_match.misfits == ()
    begun = one.initial_model(jax.random.key(0))
    assert_close(one.network.bound(one.initial_values, {}).predict(begun, STORED / 16), wanted)


@pytest.mark.parametrize(
    ("algorithm", "client", "network", "options"),
    [
        ("fedavg", None, "mlp", {}),
        ("ditto", 2, "mlp", {}),
        ("local", 1, "mlp", LORA),
        ("hetlora", 0, "mlp", {"lora_ranks": "1,2", "lora_alpha": 5.0}),
        ("local", 1, "cnn", LORA),
        ("fedavg", None, "mlp", {"freeze": "fc_0", "base_dtype": "int8"}),
        ("fedavg", 0, "mlp", LORA | {"compute_dtype": "bfloat16"}),
    ],
)
def test_one_line_each_way(algorithm, client, network, options):
    result = simulated(algorithm, network, **options)
    wanted = result.predict(0 if client is None else client, STORED, outputs=True)
    model = result.model(client)
    if "compute_dtype" in options:
        np.testing.assert_allclose(applied(network, model), wanted, rtol=0.1, atol=0.1)
        return
    assert_close(applied(network, model), wanted)
    assert_begins(model, network, wanted)


def test_a_global_model_as_it_is_and_what_is_no_single_model():
    result = simulated("fedavg")
    wanted = result.predict(0, STORED, outputs=True)
    assert_begins(result.final.models()["global"], "mlp", wanted)
    local = simulated("local")
    with pytest.raises(pfl.InputError, match=r"\[1, 3, 64\] .*: of models of several seeds or cl"):
        pfl.federate(DATA, PARTITION, "mlp", initial_model=local.final.models()["personalized"])
    with pytest.raises(pfl.InputError, match="local has no global model: give a client"):
        local.model()
    lora = simulated("fedavg", **LORA)
    with pytest.raises(pfl.InputError, match=r"adapters .* which result.model\(\) joins"):
        pfl.federate(DATA, PARTITION, "mlp", initial_model=lora.final.models()["global"])
    with pytest.raises(pfl.InputError, match=r"further modules \(personal_head\), which the plain"):
        simulated("fedrod").model(0)


def test_features_that_were_cached():
    base = simulated("fedavg").model()
    result = simulated("local", initial_model=base, freeze="body", cache_features=True)
    assert_close(applied("mlp", result.model(1)), result.predict(1, STORED, outputs=True))


class OfNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.fc = nnx.Linear(64, 5, rngs=rngs)
        self.head = nnx.Linear(5, 10, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.fc(x.reshape(x.shape[0], -1))))


def test_adapters_of_an_nnx_module():
    result = simulated("local", OfNnx, **LORA)
    assert_begins(result.model(1), OfNnx, result.predict(1, STORED, outputs=True))
