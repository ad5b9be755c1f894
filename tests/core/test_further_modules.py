"""Modules between a network's features and its head: plan, initial values, refusals."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.models import WrappedTask
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, toy_federation
from tests.algorithms.harness import TwoLayers
from tests.references import network

pytestmark = pytest.mark.usefixtures("double_precision")


@dataclass(frozen=True)
class Scaled(WrappedTask):
    """Features times a vector, plus another one."""

    added = ("scale", "shift")

    width: int

    def draw(self, key, inputs, model):
        return {
            "shift": jax.random.normal(key, (self.width,)),
            "scale": {"by": jnp.ones(self.width)},
        }

    def classify(self, model, features):
        params = model["params"]
        return super().classify(model, features * params["scale"]["by"] + params["shift"])


@dataclass(frozen=True)
class Negated(WrappedTask):
    def draw(self, key, inputs, model):
        return {}

    def classify(self, model, features):
        return -super().classify(model, features)


def scaled(federation, personal=("shift",)):
    width = federation.num_features
    return federation.with_network(lambda task: Scaled.around(task, width), personal)


@pfl.core.struct
class OwnShift(FedAvg):
    decay: float = 0.5

    def prepare(self, federation):
        return super().prepare(scaled(federation))

    def local_update(self, ctx, state, received, **options):
        decay = pfl.training.weight_decay(self.decay, ("scale", "head/bias"))
        return super().local_update(ctx, state, received, correct=decay, **options)


@pytest.mark.parametrize(
    ("share", "wanted"),
    [
        ("all", [25, 18, 5, 0]),
        ("body", [25, 0, 5, 0]),
        ("head", [0, 18, 0, 0]),
        ("none", [0] * 4),
        (pfl.core.SharedLayers(last=2), [0, 18, 5, 0]),
        (lambda path: path.endswith(("by", "kernel")), [20, 15, 5, 0]),
        (None, [25, 18, 5, 0]),
    ],
)
def test_rules_of_shared_leaves_apply_to_further_modules(share, wanted):
    federation = toy_federation(model=TanhNetwork(), share=share)
    plan = OwnShift().prepare(federation).plan
    assert plan.blocks == ("hidden", "head", "scale", "shift")
    assert plan.layers == (("hidden",), ("scale",), ("head",))
    assert plan.shared_block_sizes().tolist() == wanted


def test_a_federation_is_extended_once():
    federation = toy_federation(model=TanhNetwork())
    once = OwnShift().prepare(federation)
    assert OwnShift().prepare(once) == once
    twice = once.with_network(Negated.around).with_personal_head()
    assert twice.plan.heads == {"head", "shift", "personal_head"}
    assert OwnShift().prepare(twice) == twice
    frozen = scaled(federation.with_frozen("hidden")).with_mixtures()
    assert frozen.plan.shared_block_sizes().tolist() == [0, 18, 5, 0]
    assert frozen.plan == scaled(federation).with_frozen("hidden").with_mixtures().plan


def test_weight_decay_of_some_modules():
    params = network.random_parameters(np.random.default_rng(0), 4, 5, 3)
    params = {**params, "headless": params["hidden"]}
    gradient = network.scale(2.0, params)
    decay = pfl.training.weight_decay(0.5, ("hidden", "head/bias"))
    got = decay(gradient, params, None, None)
    wanted = {name: dict(leaves) for name, leaves in gradient.items()}
    wanted["hidden"] = network.scale(2.5, {"hidden": params["hidden"]})["hidden"]
    wanted["head"]["bias"] = 2.5 * params["head"]["bias"]
    assert_close(got, wanted, "decayed", 1e-15)
    with pytest.raises(pfl.InputError, match="module with weight decay 'heads'"):
        pfl.training.weight_decay(0.5, ("heads",))(gradient, params, None, None)


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["nnx", "frozen"])
def test_further_modules_of_other_networks(kind):
    class Small(nnx.Module):
        def __init__(self, *, rngs):
            self.hidden, self.head = nnx.Linear(4, 5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

        def features(self, x):
            return nnx.tanh(self.hidden(x))

        def __call__(self, x):
            return self.head(self.features(x))

    options = {"model": Small} if kind == "nnx" else {"model": TanhNetwork(), "freeze": "hidden"}
    if kind == "frozen":
        options["initial_model"] = toy_federation(model=TanhNetwork()).initial_model(
            jax.random.key(1)
        )
    federation = OwnShift().prepare(toy_federation(**options))
    bound = federation.with_backbone(jax.random.key(0))
    model, x = bound.initial_model(jax.random.key(0)), jnp.ones((2, 4))
    features, _ = bound.task.embed(model, x, False, None, None)
    head = model["params"]["head"]
    wanted = (features + model["params"]["shift"]) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(bound.task.predict(model, x), wanted, 1e-12)


def test_refusals():
    federation = toy_federation(model=TwoLayers())
    with pytest.raises(pfl.InputError, match="features and its head"):
        federation.with_network(Negated.around)
    federation = toy_federation(model=TanhNetwork())
    with pytest.raises(pfl.InputError, match="Unknown personal module 'shifts'"):
        scaled(federation, ("shifts",))
