"""WAFFLE's rule: the paper's distributions, shares of samples, concept shift."""

import numpy as np
import pytest

from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import CIFAR10, counts, toy


def test_waffle_table_2_and_sizes():
    p = make_partition("waffle", CIFAR10, 10, 0, distribution="C")
    assert p.sizes().tolist() == [5000] * 10
    assert p.sizes("test").tolist() == [1000] * 10
    base = np.array([0, 0, 0, 10, 20, 40, 20, 10, 0, 0])
    held = counts(p, CIFAR10)
    for agent in range(10):
        np.testing.assert_array_equal(held[agent], 50 * np.roll(base, -agent))
    np.testing.assert_array_equal(counts(p, CIFAR10, "test") * 5, held)
    p = make_partition("waffle", CIFAR10, 10, 0, distribution="B")
    assert np.flatnonzero(counts(p, CIFAR10)[1]).tolist() == [1, 2, 3, 4]  # section 3's example
    p = make_partition("waffle", CIFAR10, 10, 0, distribution="B", rotation="left")
    assert np.flatnonzero(counts(p, CIFAR10)[1]).tolist() == [0, 1, 2, 9]


@pytest.mark.parametrize("distribution", ["A", "B", "C"])
def test_waffle_uses_every_sample_of_uneven_classes(distribution):
    dataset = toy(5000, 1000, balanced=False, seed=8)
    p = make_partition("waffle", dataset, 10, 0, distribution=distribution)
    assert p.sizes().sum() == 5000
    assert p.sizes("test").sum() == 1000
    assert p.label_map is None


@pytest.mark.parametrize("labels", ["A", "B"])
@pytest.mark.parametrize("shares", ["B", "C"])
def test_waffle_sample_shares(labels, shares):
    p = make_partition("waffle", CIFAR10, 10, 0, distribution=labels, sample_shares=shares)
    wanted = {"B": [21, 6, 11, 6, 11, 6, 16, 6, 11, 6], "C": [10] * 4 + [20, 5, 5] + [10] * 3}
    np.testing.assert_allclose(
        p.sizes() / p.sizes().sum(), np.array(wanted[shares]) / 100, atol=1e-4
    )
    held = counts(p, CIFAR10)
    np.testing.assert_allclose(held[4][held[4] > 0] / held[4].sum(), 0.1 if labels == "A" else 0.25)


@pytest.mark.parametrize("shift", ["permutation", "transposition"])
@pytest.mark.parametrize("alice", [0, 3])
def test_waffle_concept_shift(shift, alice):
    options = {"distribution": "B*", "concept_shift": shift, "alice": alice}
    p = make_partition("waffle", CIFAR10, 10, 1, **options)
    identity = np.arange(10)
    assert p.label_map[alice].tolist() == identity.tolist()
    for agent in np.flatnonzero(identity != alice):
        assert sorted(p.label_map[agent]) == identity.tolist()
        moved = np.sum(p.label_map[agent] != identity)
        assert moved == 2 if shift == "transposition" else moved > 4
    # The same samples as B, in training and testing under the same labels.
    seen, tested = counts(p, CIFAR10), counts(p, CIFAR10, "test")
    np.testing.assert_array_equal(seen, 5 * tested)
    assert np.flatnonzero(seen[alice]).tolist() == sorted((identity[:4] + alice) % 10)
    assert p.hash() != make_partition("waffle", CIFAR10, 10, 1, distribution="B").hash()
    assert p.hash() == make_partition("waffle", CIFAR10, 10, 1, **options).hash()


def test_waffle_refuses_too_few_samples():
    message = r"15 samples are too few for 10 agents: agent \d would get none"
    with pytest.raises(InputError, match=message):
        make_partition("waffle", toy(15), 10, 0, sample_shares="B")


def test_waffle_needs_ten_classes_but_for_a():
    dataset = toy(2000, classes=7)
    assert make_partition("waffle", dataset, 4, 0, distribution="A*").label_map.shape == (4, 7)
    with pytest.raises(
        InputError, match=r"Number of classes for rule 'waffle' must be 10, .*got 7"
    ):
        make_partition("waffle", dataset, 10, 0, distribution="B")
