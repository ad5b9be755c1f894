"""Frozen leaves: a frozen head beside plain loops, optimizer state, statistics, refusals."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.training.local_step import LocalStep
from tests.algorithms.norms import ConvNorm, everyones
from tests.core.preparing import ROUNDS, Apart, FrozenHead, assert_stack, case, in_rounds
from tests.engine.finals import final_in
from tests.references import network


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def sgd_of_the_body(momentum, decay):
    def train(model, batches, x, y, rate):
        velocity = None
        for batch in batches:
            _, gradient = network.loss_and_gradient(model, x[batch], y[batch])
            body = {"hidden": network.add(gradient, network.scale(decay, model))["hidden"]}
            velocity = (
                body if velocity is None else network.add(network.scale(momentum, velocity), body)
            )
            model = {**model, **network.subtract(model, network.scale(rate, {**model, **velocity}))
                     } | {"head": model["head"]}  # fmt: skip
        return model

    return train


@pytest.fixture(scope="module")
def frozen():
    """(case, states, records) of some rounds."""
    with jax.enable_x64(True):
        told = case(momentum=0.5, weight_decay=0.1)
        return told, *run_rounds(FrozenHead(), told.federation, ROUNDS)


@pytest.mark.costly
def test_a_frozen_head_stays_whatever_the_optimizer_does(frozen):
    told, states, records = frozen
    first = told.initial()
    wanted = in_rounds(told, first, "head", sgd_of_the_body(0.5, 0.1))
    for state, models in zip(states[1:], wanted, strict=True):
        assert_stack(everyones(state, 5), models)
        assert_close(state.private, states[0].private, "heads", 0)
    assert FrozenHead().remarks(told.federation) == [
        "scored after 2 local epochs, learning rate 0.1 on a copy"
    ]
    # Adaptation does train it: what is scored is not the model of the rounds.
    losses = records[-1]["scores"]["personalized/test/loss"]
    changes = abs(losses - told.test_losses(wanted[-1]))
    assert (changes[np.isfinite(losses)] > 1e-3).all()
    final = final_in(states[-1], FrozenHead(), told.federation, ROUNDS).models()
    head = final["personalized"]["params"]["head"]["kernel"][0]
    assert (abs(head - first["head"]["kernel"]).max(axis=(1, 2)) > 1e-3).all()


@pytest.mark.costly
def test_new_clients_train_what_rounds_leave_frozen(frozen):
    told, states, _ = frozen
    final = final_in(states[-1], FrozenHead(), told.federation, ROUNDS)
    _, new = split_new_clients(told.federation, 1)
    head = jax.tree.map(lambda leaf: leaf[0, 0], final.personalize(new))["params"]["head"]
    assert (abs(head["kernel"] - told.initial()["head"]["kernel"]) > 1e-3).any()


def test_frozen_leaves_have_no_optimizer_state():
    federation = toy_federation(model=Apart(), momentum=0.5)
    model = federation.initial_model(jax.random.key(0))
    for fed, shapes in (
        (federation, [(3,), (5, 3), (5,), (4, 5)]),
        (federation.with_frozen("head"), [(5,), (4, 5)]),
        (federation.with_frozen("body"), [(3,), (5, 3)]),
        (federation.with_frozen(lambda path: path.endswith("bias")), [(5, 3), (4, 5)]),
    ):
        begun = LocalStep(fed, fed.training.learning_rate).begin(model)
        assert [leaf.shape for leaf in jax.tree.leaves(begun.optimizer)] == shapes


@pytest.mark.costly
def test_statistics_of_a_frozen_body_stay():
    federation = toy_federation(model=ConvNorm()).with_frozen("body")
    states = states_of(FedAvg(), federation, 1)
    for layer in ("params", "batch_stats"):
        for name, leaves in everyones(states[0], 5)[layer].items():
            after = everyones(states[1], 5)[layer][name]
            same = [np.array_equal(a, b) for a, b in
                    zip(jax.tree.leaves(leaves), jax.tree.leaves(after), strict=True)]  # fmt: skip
            assert all(same) == (name != "head"), name
    assert federation.plan.shared_block_sizes().tolist() == [0, 0, 27]


def test_what_was_frozen_stays_so_beside_more_and_under_a_second_head():
    federation = toy_federation(model=Apart()).with_frozen("head")
    both = federation.with_frozen(lambda path: path.endswith("hidden/bias"))
    named = dict(zip(both.plan.paths, both.plan.frozen, strict=True))
    kernel = "params/hidden/kernel"
    assert [path for path, frozen in named.items() if not frozen] == [kernel]
    plan = both.with_personal_head().plan  # the second head learns
    named = {path for path, on in zip(plan.paths, plan.frozen, strict=True) if not on}
    assert named == {kernel, "params/personal_head/bias", "params/personal_head/kernel"}


@pytest.mark.parametrize("rule", ["all", pfl.core.SharedLayers(last=2)])
def test_something_has_to_be_trained(rule):
    with pytest.raises(pfl.InputError, match="can't be frozen: nothing of the model would be"):
        toy_federation().with_frozen(rule)
