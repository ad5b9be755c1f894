"""The frozen base is held once: no array of a program is as large as one for each client."""

import math
import re

import flax.linen as nn
import jax
import pytest
from flax import nnx

import fedjax_pfl as pfl
from fedjax_pfl.models.layers import Conv
from fedjax_pfl.models.networks import MLP
from fedjax_pfl.testing.toys import toy_federation

pytestmark = pytest.mark.costly

COUNT, WIDTH = 8, 64


class OfConvolutions(nn.Module):
    """The largest kernel has 4 WIDTH * WIDTH numbers."""

    def setup(self):
        self.first = nn.Conv(WIDTH, (1, 1))
        self.second = Conv(WIDTH, (2, 2))
        self.head = nn.Dense(3)

    def features(self, x):
        return self.second(nn.relu(self.first(x.reshape(-1, 2, 2, 1)))).reshape(len(x), -1)

    def __call__(self, x):
        return self.head(self.features(x))


class OfNnx(nnx.Module):
    def __init__(self, *, rngs):
        self.conv = nnx.Conv(1, WIDTH, (2, 2), padding="VALID", rngs=rngs)
        self.fc = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 3, rngs=rngs)

    def features(self, x):
        return self.fc(nnx.relu(self.conv(x.reshape(-1, 2, 2, 1)).reshape(len(x), -1)))

    def __call__(self, x):
        return self.head(self.features(x))


def of_equinox():
    eqx = pytest.importorskip("equinox", reason="needs the package equinox")

    class Net(eqx.Module):
        conv: eqx.nn.Conv2d
        fc: eqx.nn.Linear
        head: eqx.nn.Linear

        def __init__(self, key):
            one, two, three = jax.random.split(key, 3)
            self.conv = eqx.nn.Conv2d(1, WIDTH, 2, key=one)
            self.fc = eqx.nn.Linear(WIDTH, WIDTH, key=two)
            self.head = eqx.nn.Linear(WIDTH, 3, key=three)

        def features(self, x):
            return self.fc(jax.nn.relu(self.conv(x.reshape(1, 2, 2))).reshape(-1))

        def __call__(self, x):
            return self.head(self.features(x))

    return Net(jax.random.key(0))


def largest_arrays(name, model, compiled=False):
    """Numbers of the largest array of a round's program, also after XLA's optimizations."""
    one = toy_federation(
        (3,) * COUNT, (2,) * COUNT, model=model, dtype="float32", lora_rank=1,
        client_execution="vmap", eval_batch_size=4,
    )  # fmt: skip
    known = pfl.core.ALGORITHMS[name].__dataclass_fields__
    own = {"hidden_size": 16} if "hidden_size" in known else {}  # smaller than the base
    program = pfl.Simulation(pfl.make_algorithm(name, own), one).lower(jax.local_devices()[:1])
    found = [re.findall(r"tensor<([\dx]+)x\w+>", program.rounds.as_text())]
    if compiled:
        found += [re.findall(r"\b\w+\[([\d,]+)\]", program.rounds.compile().as_text())]
    return [max(math.prod(map(int, re.split("[x,]", one))) for one in shapes) for shapes in found]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in sorted(pfl.core.ALGORITHMS)
        if name not in ("fedbn", "ditto")  # needs batch normalization; is compiled below
    ],
)
def test_no_array_is_as_large_as_a_base_of_each_client(name):
    """Features are narrow, as several methods keep their covariances or maps for each client."""
    (largest,) = largest_arrays(name, MLP(3, (WIDTH, WIDTH, 4)))
    assert WIDTH**2 <= largest < COUNT * WIDTH**2


def test_base_is_not_copied_in_the_compiled_program():
    for largest in largest_arrays("ditto", MLP(3, (WIDTH, WIDTH, 4)), compiled=True):
        assert WIDTH**2 <= largest < COUNT * WIDTH**2


@pytest.mark.parametrize("library", ["convolutions", "nnx", "equinox"])
def test_base_of_convolutions_nnx_and_equinox_is_not_copied(library):
    model = {"convolutions": OfConvolutions, "nnx": lambda: OfNnx(rngs=nnx.Rngs(0)),
             "equinox": of_equinox}[library]()  # fmt: skip
    kernel = WIDTH**2 * (4 if library == "convolutions" else 1)
    (largest,) = largest_arrays("fedex_lora", model)
    assert kernel <= largest < COUNT * kernel
