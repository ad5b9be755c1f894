"""A second head beside the generic one: plain loops, its plan, traffic, new clients, refusals."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.new_clients import score_new_clients, split_new_clients
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.harness import TwoLayers, dense
from tests.algorithms.norms import ConvNorm, everyones
from tests.core.preparing import (
    ROUNDS,
    Apart,
    FrozenHead,
    TwoHeaded,
    assert_stack,
    case,
    in_rounds,
)
from tests.references import network


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def sgd_of_two_heads(model, batches, x, y, rate):
    """Plain loops: the generic loss trains body and head, the personal one the personal head."""
    for batch in batches:
        inputs, count = x[batch], len(batch)
        own = model["personal_head"]
        features = network.activations(
            {k: v for k, v in model.items() if k != "personal_head"}, inputs
        )[-1]
        generic = {k: v for k, v in model.items() if k != "personal_head"}
        scores = features @ own["kernel"] + own["bias"] + network.logits(generic, inputs)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        slope = (shares / shares.sum(axis=1, keepdims=True) - np.eye(3)[y[batch]]) / count
        _, gradient = network.loss_and_gradient(generic, inputs, y[batch])
        gradient["personal_head"] = {"kernel": features.T @ slope, "bias": slope.sum(axis=0)}
        model = network.subtract(model, network.scale(rate, {k: gradient[k] for k in model}))
    return model


@pytest.fixture(scope="module")
def two_headed():
    """(case, result) of some rounds."""
    with jax.enable_x64(True):
        told = case()
        return told, pfl.simulate(TwoHeaded(), told.federation, ROUNDS, seeds=(0,))


@pytest.mark.costly
def test_a_personal_head_learns_beside_the_generic_one(two_headed):
    told, result = two_headed
    first = told.initial()
    first = {**first, "personal_head": first["head"]}  # it begins as a copy
    wanted = in_rounds(told, first, "personal_head", sgd_of_two_heads)
    models = jax.tree.map(lambda leaf: leaf[0], result.final.models())
    assert_stack(models["personalized"], wanted[-1])
    # Scored are the sum of both, and the generic one alone.
    for name, heads in (("personalized", ("head", "personal_head")), ("global", ("head",))):
        for i, model in enumerate(wanted[-1]):
            at = told.samples(i, "test")
            if not len(at):
                continue
            features = np.tanh(told.x[at] @ model["hidden"]["kernel"] + model["hidden"]["bias"])
            scores = sum(features @ model[h]["kernel"] + model[h]["bias"] for h in heads)
            right = (scores.argmax(axis=1) == told.y[at]).mean()
            np.testing.assert_allclose(result.scores[f"{name}/test/accuracy"][0, 0, -1, i], right)


@pytest.mark.costly
def test_the_plan_of_two_heads():
    federation = TwoHeaded().prepare(toy_federation(model=Apart()))
    plan = federation.plan
    assert plan.blocks == ("hidden", "head", "personal_head") and plan.head == "head"
    assert plan.heads == {"head", "personal_head"}
    assert plan.shared_block_sizes().tolist() == [25, 18, 0]
    assert plan.num_parameters == 25 + 18 + 18
    assert plan.layers == (("hidden",), ("head",))
    assert plan.grouped("stages").blocks == ("body", "head")
    assert plan.grouped("stages").shared_block_sizes().tolist() == [25, 18]
    assert TwoHeaded().prepare(federation) == federation  # once more changes nothing
    for share, wanted in (("body", [25, 0, 0]), ("head", [0, 18, 0]), ("none", [0, 0, 0])):
        other = TwoHeaded().prepare(toy_federation(model=Apart(), share=share))
        assert other.plan.shared_block_sizes().tolist() == wanted
    model = federation.initial_model(jax.random.key(0))["params"]
    assert_close(model["personal_head"], model["head"], "a copy", 0)
    fresh = toy_federation(model=Apart()).with_personal_head(fresh=True)
    model = fresh.initial_model(jax.random.key(0))["params"]
    assert (model["personal_head"]["kernel"] != model["head"]["kernel"]).all()


@pytest.mark.parametrize("policy", [None, "affine_shared", "local"])
def test_the_plan_of_batch_norm_under_two_heads(policy):
    federation = toy_federation(model=ConvNorm(), batch_norm=policy)
    plan = TwoHeaded().prepare(federation).plan
    sizes = dict(zip(plan.blocks, plan.shared_block_sizes().tolist(), strict=True))
    affine = {None: 8, "affine_shared": 4, "local": 0}[policy]  # FedAvg's own is "shared"
    assert sizes == {"conv": 20, "bn": affine, "head": 27, "personal_head": 0}


@pytest.mark.costly
@pytest.mark.parametrize(
    "policy",
    [
        None,
        pytest.param("local", marks=pytest.mark.costly),
        pytest.param("affine_shared", marks=pytest.mark.costly),
    ],
)
def test_batch_norm_under_two_heads(policy):
    federation = toy_federation(model=ConvNorm(), batch_norm=policy)
    states = states_of(TwoHeaded(), federation, 1)
    moved = everyones(states[-1], 5)["batch_stats"]["bn"]["mean"]
    assert (abs(moved - moved[:1]).max() > 1e-6) == (policy is not None)


def test_traffic_and_memory_are_those_of_the_prepared_federation(two_headed):
    told, result = two_headed
    federation = told.federation
    assert result.blocks == ("hidden", "head", "personal_head")
    assert result.num_parameters == 61 and result.block_sizes.tolist() == [25, 18, 0]
    plain, both = (checked_program(one(), federation).held() for one in (FedAvg, TwoHeaded))
    assert both.state - plain.state == 5 * 18 * 8  # a head of everybody's own
    frozen = FrozenHead().prepare(federation).plan
    assert frozen.num_parameters == 43 and frozen.shared_block_sizes().tolist() == [25, 0]


@pytest.mark.costly
def test_new_clients_get_what_the_algorithm_asks_for(two_headed):
    told, result = two_headed
    final, (_, new) = result.final, split_new_clients(told.federation, 1)
    models = jax.eval_shape(lambda: final.personalize(new))
    assert models["params"]["personal_head"]["kernel"].shape == (1, 1, 5, 3)
    assert score_new_clients(final, new, steps=(1,)).shape == (1, 1, 1, 1)


@pytest.mark.parametrize("check", ["partial_participation", "executions", "divergence"])
@pytest.mark.parametrize("algorithm", [TwoHeaded, FrozenHead])
@pytest.mark.costly
def test_suite(algorithm, check):
    CHECKS[check](algorithm())


class Tanh(nn.Module):
    """Features, but a head of another name."""

    def setup(self):
        self.top = dense(3, None)

    def features(self, x):
        return nn.tanh(x)

    def __call__(self, x):
        return self.top(self.features(x))


class Fewer(Apart):
    """Its head does not see all of its features."""

    def __call__(self, x):
        return self.head(self.features(x)[:, :2])


def functions():
    def init(key, inputs):
        return {"head": {"kernel": jnp.zeros((4, 3))}}

    return init, lambda params, inputs: inputs @ params["head"]["kernel"]


@pytest.mark.parametrize("model", [TwoLayers(), Tanh(), Fewer(), functions()])
def test_a_model_that_does_not_say_its_features_is_refused(model):
    federation = toy_federation(model=model)
    pfl.Simulation(FedAvg(), federation).check()
    with pytest.raises(pfl.InputError, match="and its head; a linen, NNX or Equinox module"):
        pfl.Simulation(TwoHeaded(), federation).check()


def test_two_heads_have_the_losses_of_their_network():
    @dataclass(frozen=True)
    class Doubled(pfl.models.LinenTask):
        def losses(self, logits, labels):
            return 2 * super().losses(logits, labels)

    logits, labels = jnp.ones((2, 3)), jnp.zeros(2, int)
    task = toy_federation(model=Doubled(Apart(), dtype="float64")).with_personal_head().task
    np.testing.assert_allclose(task.losses(logits, labels), 2 * np.log(3) * np.ones(2), 1e-12)


@pytest.mark.costly
def test_two_heads_compute_in_the_type_that_networks_compute_in():
    federation = toy_federation(model=Apart(), dtype="float32", compute_dtype="bfloat16")
    federation = federation.with_personal_head()
    model = federation.initial_model(jax.random.key(0))
    inputs = jnp.ones((2, 4), jnp.float32)
    outputs = federation.task.heads(model, inputs, False, None, None)[:2]
    assert {logits.dtype for logits in outputs} == {jnp.dtype("float32")}
    text = str(jax.make_jaxpr(lambda: federation.task.heads(model, inputs, False, None, None))())
    assert "bf16" in text
    np.testing.assert_allclose(
        federation.task.predict(model, inputs), sum(outputs), rtol=2e-2, atol=2e-2
    )
