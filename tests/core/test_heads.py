"""A second head beside the generic one, as FedRoD has it: its plan, traffic, memory, refusals."""

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.harness import TwoLayers, dense
from tests.algorithms.norms import ConvNorm, everyones

TWO_HEADED = pfl.make_algorithm("fedrod")

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.costly
def test_the_plan_of_two_heads():
    federation = TWO_HEADED.prepare(toy_federation(model=TanhNetwork()))
    plan = federation.plan
    assert plan.blocks == ("hidden", "head", "personal_head") and plan.head == "head"
    assert plan.heads == {"head", "personal_head"}
    assert plan.shared_block_sizes().tolist() == [25, 18, 0]
    assert plan.num_parameters == 25 + 18 + 18
    assert plan.layers == (("hidden",), ("head",))
    assert plan.grouped("stages").blocks == ("body", "head")
    assert plan.grouped("stages").shared_block_sizes().tolist() == [25, 18]
    assert TWO_HEADED.prepare(federation) == federation  # once more changes nothing
    for share, wanted in (("body", [25, 0, 0]), ("head", [0, 18, 0]), ("none", [0, 0, 0])):
        other = TWO_HEADED.prepare(toy_federation(model=TanhNetwork(), share=share))
        assert other.plan.shared_block_sizes().tolist() == wanted
    model = federation.initial_model(jax.random.key(0))["params"]
    assert_close(model["personal_head"], model["head"], "a copy", 0)
    fresh = toy_federation(model=TanhNetwork()).with_personal_head(fresh=True)
    model = fresh.initial_model(jax.random.key(0))["params"]
    assert (model["personal_head"]["kernel"] != model["head"]["kernel"]).all()


@pytest.mark.parametrize("policy", [None, "affine_shared", "local"])
def test_the_plan_of_batch_norm_under_two_heads(policy):
    federation = toy_federation(model=ConvNorm(), batch_norm=policy)
    plan = TWO_HEADED.prepare(federation).plan
    sizes = dict(zip(plan.blocks, plan.shared_block_sizes().tolist(), strict=True))
    affine = {None: 8, "affine_shared": 4, "local": 0}[policy]  # FedAvg's own is "shared"
    assert sizes == {"conv": 20, "bn": affine, "head": 27, "personal_head": 0}


@pytest.mark.costly
@pytest.mark.parametrize("policy", [None, "local", "affine_shared"])
def test_batch_norm_under_two_heads(policy):
    federation = toy_federation(model=ConvNorm(), batch_norm=policy)
    states = states_of(TWO_HEADED, federation, 1)
    moved = everyones(states[-1], 5)["batch_stats"]["bn"]["mean"]
    assert (abs(moved - moved[:1]).max() > 1e-6) == (policy is not None)


def test_traffic_and_memory_are_those_of_the_prepared_federation():
    federation = toy_federation(model=TanhNetwork(), validation_size=0)
    result = pfl.simulate(TWO_HEADED, federation, 1)
    assert result.blocks == ("hidden", "head", "personal_head")
    assert result.num_parameters == 61 and result.block_sizes.tolist() == [25, 18, 0]
    plain, both = (checked_program(one, federation).held() for one in (FedAvg(), TWO_HEADED))
    assert both.state - plain.state == 5 * 18 * 8  # a head of everybody's own


class Tanh(nn.Module):
    """Features, but a head of another name."""

    def setup(self):
        self.top = dense(3, None)

    def features(self, x):
        return nn.tanh(x)

    def __call__(self, x):
        return self.top(self.features(x))


class Fewer(TanhNetwork):
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
        pfl.Simulation(TWO_HEADED, federation).check()


def test_two_heads_have_the_losses_of_their_network():
    @dataclass(frozen=True)
    class Doubled(pfl.models.LinenTask):
        def losses(self, logits, labels):
            return 2 * super().losses(logits, labels)

    logits, labels = jnp.ones((2, 3)), jnp.zeros(2, int)
    task = toy_federation(model=Doubled(TanhNetwork(), dtype="float64")).with_personal_head().task
    np.testing.assert_allclose(task.losses(logits, labels), 2 * np.log(3) * np.ones(2), 1e-12)


@pytest.mark.costly
def test_two_heads_compute_in_the_type_that_networks_compute_in():
    federation = toy_federation(model=TanhNetwork(), dtype="float32", compute_dtype="bfloat16")
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
