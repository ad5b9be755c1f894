"""Partition rules of users: names, options, inputs."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.partitions.rule_registry import RULES, DealPlan
from tests.data.partitions.pools import toy

DATA = toy(60, 20)


@pytest.fixture
def rules():
    known = dict(RULES)
    yield
    RULES.clear()
    RULES.update(known)


def deal_sorted(num_clients, parts=1):
    def deal(samples, rng):
        order = samples.idx[np.argsort(samples.inputs[:, 0], kind="stable")]
        pieces = np.array_split(order, parts * num_clients)
        return [[np.concatenate(pieces[k::num_clients])] for k in range(num_clients)]

    return deal


def test_a_rule_that_sees_inputs(rules):
    seen = []

    @pfl.data.register_rule("by_value", needs_classes=False, sees_inputs=True)
    def by_value(samples, num_clients, rng, *, parts: int = 1):
        seen.append(samples)
        return DealPlan(deal_sorted(num_clients, parts), {"pieces": parts * num_clients})

    made = pfl.make_partition("by_value", DATA, 3, 0, parts=2)
    (samples,) = seen
    np.testing.assert_array_equal(samples.inputs, DATA.train_x)
    # The inputs of this data set are their own index.
    train, test = made.client("train", 1), made.client("test", 1)
    assert train.tolist() == [*range(10, 20), *range(40, 50)]
    assert test.tolist() == [*range(64, 68), *range(74, 77)]
    assert made.options["parts"] == 2 and made.options["pieces"] == 6
    with pytest.raises(pfl.InputError, match=r"Unknown option of partition rule 'by_value' 'part'"):
        pfl.make_partition("by_value", DATA, 3, 0, part=2)


def test_rules_that_do_not_ask_see_no_inputs(rules):
    @pfl.data.register_rule("blind")
    def blind(samples, num_clients, rng):
        assert samples.inputs is None
        return DealPlan(lambda samples, rng: [[one] for one in np.array_split(samples.idx, 2)], {})

    assert pfl.make_partition("blind", DATA, 2, 0).sizes("train").tolist() == [30, 30]


def test_a_rule_with_a_test_split_that_can_not_be():
    with pytest.raises(pfl.InputError, match=r"Unknown test_split 'offical'\. Did you mean"):
        pfl.data.register_rule("mine", test_split="offical")
    with pytest.raises(pfl.InputError, match="test_fraction must be a number at least 0 and below"):
        pfl.data.register_rule("mine", test_fraction=1.5)
