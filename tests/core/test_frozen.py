"""Frozen leaves: optimizer state, statistics, refusals; FedBABU's reference has a frozen head."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.testing.toys import TanhNetwork, states_of, toy_federation
from fedjax_pfl.training.local_step import LocalStep
from tests.algorithms.norms import ConvNorm, everyones

pytestmark = pytest.mark.usefixtures("double_precision")


def test_frozen_leaves_have_no_optimizer_state():
    federation = toy_federation(model=TanhNetwork(), momentum=0.5)
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
    federation = toy_federation(model=TanhNetwork()).with_frozen("head")
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
