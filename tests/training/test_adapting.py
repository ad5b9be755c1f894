"""Copies of models that are adapted before they are scored."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Adaptation, Broadcast, InputError
from fedjax_pfl.federation.adaptation import JointEpochs
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.optimizers import SGD
from fedjax_pfl.testing.toys import TRAIN_SIZES, assert_close, toy_federation
from fedjax_pfl.utils import trees
from tests.models.norm_net import NormNet
from tests.training.five import COUNT, context, models_of, samples

ROWS = jnp.arange(COUNT)


pytestmark = pytest.mark.usefixtures("double_precision")


@partial(jax.jit, static_argnames="how")
def adapted(federation, models, rows, how):
    return context(federation).adapt(models, rows, how)


def test_no_steps_of_adaptation_change_nothing():
    federation = toy_federation()
    models = models_of()
    assert_close(adapted(federation, models, ROWS, Adaptation(steps=0)), models, "0 steps", 0)


def test_adapting_the_head_moves_the_head_alone():
    federation = toy_federation()
    models = models_of()
    after = adapted(federation, models, ROWS, Adaptation(leaves="head"))["params"]
    for name, before in models["params"]["fc_0"].items():
        np.testing.assert_array_equal(after["fc_0"][name], before)
    for name, before in models["params"]["head"].items():
        assert (after["head"][name] != before).reshape(COUNT, -1).any(1).all()


@pytest.mark.costly
@pytest.mark.parametrize("leaves", ["head", "body"])
def test_running_statistics_are_the_bodys(leaves):
    federation = toy_federation(model=NormNet())
    models = models_of(NormNet())
    before = models["batch_stats"]["bn"]
    after = adapted(federation, models, ROWS, Adaptation(leaves=leaves))["batch_stats"]["bn"]
    for name, values in before.items():
        moved = (np.asarray(after[name]) != values).any(axis=1)
        # A batch of one sample has a mean but no variance: client 2's stays.
        wanted = [leaves == "body" and not (name == "var" and i == 2) for i in range(COUNT)]
        np.testing.assert_array_equal(moved, wanted, name)


def test_a_copy_whose_adaptation_overflows_is_the_unadapted_model():
    federation = toy_federation(diverging=3)
    models = models_of()
    after = adapted(federation, models, ROWS, Adaptation())
    assert_close(trees.row(after, 3), trees.row(models, 3), "client 3", 0)
    for i in (0, 1, 2, 4):
        assert (after["params"]["head"]["bias"][i] != models["params"]["head"]["bias"][i]).all()


@pytest.mark.costly
def test_adapting_some_clients_of_a_shared_model():
    federation = toy_federation()
    models = models_of()
    all_of_them = jax.tree.map(lambda x: jnp.broadcast_to(x[1], x.shape), models)
    how = Adaptation(steps=2)
    every = adapted(federation, all_of_them, ROWS, how)
    some = adapted(federation, Broadcast(trees.row(models, 1)), jnp.array([4, 2]), how)
    assert_close(some, jax.tree.map(lambda x: x[jnp.array([4, 2])], every), "clients 4 and 2")


def quarter(t, total):
    return 0.25


def twice(rate):
    return optax.sgd(2 * rate)


@pytest.mark.parametrize(
    ("how", "trained"),
    [
        (
            {},
            {"batch_size": 16, "learning_rate": 0.4, "lr_schedule": quarter},
        ),
        pytest.param(
            {"batch_size": 16, "learning_rate": 0.1},
            {"batch_size": 2, "learning_rate": 0.7},
            marks=pytest.mark.costly,
        ),
        pytest.param(
            {"batch_size": 16, "learning_rate": 0.05, "optimizer": twice},
            {"momentum": 0.9, "weight_decay": 0.5},
            marks=pytest.mark.costly,
        ),
    ],
    ids=["as the round", "of its own", "with an optimizer of its own"],
)
def test_one_step_of_adaptation_is_one_step_of_gradient_descent(how, trained):
    federation = toy_federation(TRAIN_SIZES, **trained)
    models = models_of()
    moved = adapted(federation, models, ROWS, Adaptation(steps=1, **how))

    @jax.jit
    def step(model, batch):
        slope = jax.grad(lambda m: federation.task.loss(m, batch)[0])(model)
        return jax.tree.map(lambda m, g: m - 0.1 * g, model, slope)

    for i in range(COUNT):
        x, y = samples(federation, i, "train")
        fill = 10 - len(y)
        batch = pfl.training.Batch(
            np.pad(x, ((0, fill), (0, 0))), np.pad(y, (0, fill)), np.arange(10) < len(y)
        )
        wanted = step(jax.tree.map(lambda leaf, i=i: leaf[i], models), batch)
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], moved), wanted, f"client {i}")


class Unhashable(list):
    def __call__(self, rate):
        return twice(rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, r"epochs of adaptation must be .*at least 0, got -1"),
        ({"steps": -1}, r"adapt_steps must be .*at least 0, got -1"),
        ({"leaves": "heads"}, "Did you mean 'head'"),
        ({"when": "lasts"}, "Did you mean 'last'"),
        ({"learning_rate": -0.1}, r"adapt_learning_rate must be .* of at least 0, got -0\.1"),
        ({"learning_rate": 1e39}, r"adapt_learning_rate must be .* got 1e\+39"),
        ({"batch_size": 0}, "adapt_batch_size must be a whole number of at least 1, got 0"),
        ({"optimizer": 0.1}, r"optimizer of adaptation must be a function .*, got 'float'"),
        ({"optimizer": SGD(momentum=2)}, r"momentum must be in \[0, 1\), got 2"),
        ({"optimizer": Unhashable()}, "optimizer of adaptation must be hashable"),
        ({"joint_epochs": 2}, "joint_epochs of adaptation must be True or False, got 2"),
        ({"joint_epochs": True, "steps": 2}, "steps must be None with joint_epochs, got 2"),
        ({"proximal_weight": -1}, "proximal weight of adaptation must be .* at least 0, got -1"),
        ({"proximal_weight": float("nan")}, "proximal weight of adaptation must be a"),
        ({"rate_factor": -1}, "rate_factor of adaptation must be a"),
    ],
)
def test_adaptation_is_checked(options, message):
    with pytest.raises(InputError, match=message):
        Adaptation(**options).checked()


def test_batches_of_adaptation_are_shuffled_and_drop_what_a_rounds_do():
    local = Schedule(3, None, 5, drop_last=True, shuffle=False)
    assert Adaptation(2).schedule(local) == Schedule(2, None, 5, drop_last=True)
    assert Adaptation(steps=4, batch_size=3).schedule(Schedule()) == Schedule(1, 4, 3)
    joint = Adaptation(3, joint_epochs=True).schedule(Schedule(batch_size=5))
    assert joint == JointEpochs(3, batch_size=5)
    assert Adaptation().schedule(replace(local, fresh=True)) == Schedule(
        3, None, 5, drop_last=True, fresh=True
    )


def test_adaptation_says_what_it_is():
    assert str(Adaptation()) == "local training as in a round"
    assert str(Adaptation(1, optimizer=twice)) == "1 local epoch, optimizer twice"
    how = Adaptation(epochs=2, joint_epochs=True, proximal_weight=0.5)
    text = "2 local epochs, minibatches counted over all of them, with a proximal term"
    assert str(how) == text
    own = SGD(0.9, nesterov=True, weight_decay=0.01)
    how = Adaptation(steps=2, leaves="head", batch_size=5, learning_rate=0.1, optimizer=own)
    assert str(how) == (
        "2 local steps of the head, minibatches of 5, learning rate 0.1, "
        "optimizer SGD (momentum 0.9, Nesterov, weight decay 0.01)"
    )
