"""Equinox modules as tasks, against the linen module of the same network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.models.task import EVALUATION, as_task
from tests.models.twin import INPUTS, Twin, federation

pytestmark = pytest.mark.costly

eqx = pytest.importorskip("equinox", reason="needs the package equinox")


class Net(eqx.Module):
    fc: eqx.nn.Linear
    bn: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    after: eqx.nn.Linear
    head: eqx.nn.Linear
    sizes: jax.Array  # no parameter: whole numbers

    def __init__(self, key, dropout=0.0, mode="batch"):
        keys = jax.random.split(key, 3)
        self.fc = eqx.nn.Linear(4, 5, key=keys[0])
        self.bn = eqx.nn.BatchNorm(5, "samples", momentum=0.9, mode=mode)
        self.drop = eqx.nn.Dropout(dropout)
        self.after = eqx.nn.Linear(5, 5, key=keys[1])
        self.head = eqx.nn.Linear(5, 3, key=keys[2])
        self.sizes = jnp.array([4, 5])

    def features(self, x, state, key=None):
        x, state = self.bn(self.fc(x), state)
        x = self.drop(jax.nn.relu(x), key=key)
        return jax.nn.relu(self.after(x)), state

    def __call__(self, x, state, key=None):
        x, state = self.features(x, state, key)
        return self.head(x), state


def of_twin(model):
    """The twin's model, as after no training: its statistics are not kept debiased."""
    params = {
        name: {"kernel": part["weight"].T, "bias": part["bias"]}
        for name, part in model["params"].items()
        if name != "bn"
    }
    bn = model["params"]["bn"]
    zero, one = np.zeros(5, np.float32), np.ones(5, np.float32)
    params["bn"] = {"scale": bn["weight"], "bias": bn["bias"]}
    return {"params": params, "batch_stats": {"bn": {"mean": zero, "var": one}}}


def test_a_training_pass_is_the_twins():
    task, twin = as_task(Net(jax.random.key(3))), as_task(Twin())
    model = task.initial_model(jax.random.key(0), INPUTS)
    assert list(task.init(jax.random.key(0), INPUTS)["params"]) == ["fc", "bn", "after", "head"]
    assert set(model["state"]["bn"]) == {"batch_counter_0", "batch_state_index_0",
                                         "batch_state_index_1"}  # fmt: skip
    mode = (True, jax.random.key(1), None)

    def loss(task):
        def of(params, model):
            out = task.outputs(model | {"params": params}, INPUTS, *mode)
            return jnp.sum(out.logits**2), out

        return jax.jit(jax.grad(of, has_aux=True))

    gradient, ours = loss(task)(model["params"], model)
    other, theirs = loss(twin)(of_twin(model)["params"], of_twin(model))
    np.testing.assert_allclose(ours.logits, theirs.logits, atol=1e-5)
    np.testing.assert_allclose(gradient["fc"]["weight"].T, other["fc"]["kernel"], atol=1e-4)
    assert ours.statistics["state"]["bn"]["batch_counter_0"] == 1
    np.testing.assert_allclose(task.classify(model, ours.features), ours.logits, atol=1e-5)
    embedded, statistics = task.embed(model, INPUTS, *mode)
    np.testing.assert_allclose(embedded, ours.features, atol=1e-6)
    assert jax.tree.structure(statistics) == jax.tree.structure(ours.statistics)

    @jax.jit
    def by_equinox():
        net, state = eqx.nn.make_with_state(Net)(jax.random.key(3))
        axes = {"in_axes": (0, None), "out_axes": (0, None), "axis_name": "samples"}
        _, state = jax.vmap(net, **axes)(INPUTS, state)
        return jax.vmap(eqx.nn.inference_mode(net), **axes)(INPUTS, state)[0]

    after = task.outputs(model | ours.statistics, INPUTS, *EVALUATION)
    np.testing.assert_allclose(after.logits, by_equinox(), atol=1e-6)
    assert after.statistics == {}


def test_a_module_with_its_state_a_function_and_dropout():
    make = eqx.nn.make_with_state(lambda key: Net(key, 0.5, "ema"))
    given = as_task(make(jax.random.key(3)))
    drawn = pfl.models.EquinoxTask(make)
    key, other = jax.random.key(0), jax.random.key(1)
    one, two = (drawn.initial_model(each, INPUTS) for each in (key, other))
    assert not np.array_equal(one["params"]["fc"]["weight"], two["params"]["fc"]["weight"])
    same = [given.initial_model(each, INPUTS)["params"]["fc"]["weight"] for each in (key, other)]
    np.testing.assert_array_equal(*same)
    logits = [
        given.outputs(one, INPUTS, *mode, None).logits
        for mode in ((True, key), (True, key), (True, other))
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert not np.array_equal(logits[0], logits[2])


class Plain(eqx.Module):
    layer: eqx.nn.Linear

    def __call__(self, x):
        return self.layer(x)


class Switched(Plain):
    def __call__(self, x, training=False):
        return self.layer(x)


def test_a_flag_that_nothing_sets_is_refused():
    with pytest.raises(pfl.InputError, match=r"^__call__ takes 'training', .* field 'inference'"):
        federation(Switched(eqx.nn.Linear(4, 3, key=jax.random.key(0))), head="layer")


def test_two_rounds():
    net = Net(jax.random.key(3))
    for model, head in ((net, None), (Plain(eqx.nn.Linear(4, 3, key=jax.random.key(0))), "layer")):
        one = federation(model, head=head)
        result = pfl.simulate(pfl.make_algorithm("fedavg"), one, rounds=2, seeds=(0, 1))
        losses = result.scores["personalized/test/loss"]
        assert np.isfinite(losses).all()
        assert (losses[:, 0, -1] < losses[:, 0, 0]).any()
    assert federation(net).plan.normalized == {"bn"}
