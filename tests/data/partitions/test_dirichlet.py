"""Dirichlet rules: coverage, the minimum, concentration, caps, hostile settings."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.data.partitions import dirichlet
from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import POOLED, all_counts, counts, toy


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 60),
    alpha=st.sampled_from([1e-4, 0.05, 0.1, 1.0, 100.0]),
    min_size=st.integers(1, 30),
    seed=st.integers(0, 10**6),
)
def test_dirichlet_covers_everything_and_keeps_the_minimum(clients, alpha, min_size, seed):
    dataset = toy(1800, balanced=False, seed=2)
    p = make_partition(
        "dirichlet", dataset, clients, seed, alpha=alpha, min_size=min_size, max_retries=5
    )
    sizes = p.sizes("train") + p.sizes("test")
    assert sizes.sum() == 1800
    assert sizes.min() >= min_size
    assert isinstance(p.options["fallback_used"], bool)


def test_dirichlet_concentration():
    dataset = toy(20000)
    classes = {
        alpha: (counts(make_partition("dirichlet", dataset, 20, 0, alpha=alpha), dataset) > 0)
        for alpha in (0.01, 0.1, 1000.0)
    }
    means = {alpha: held.sum(axis=1).mean() for alpha, held in classes.items()}
    assert means[0.01] < 3 < means[0.1] < 8 < means[1000.0] == 10


def test_dirichlet_size_cap():
    # A client gets no class once it holds |D|/N: it can exceed that by less than one class.
    for seed in range(10):
        p = make_partition("dirichlet", POOLED, 4, seed, alpha=0.01, min_size=1)
        held = counts(p, POOLED) + counts(p, POOLED, "test")
        before = np.cumsum(held, axis=1) - held
        assert not np.any(held[before >= 500])


def test_dirichlet_keeps_the_nearest_draw(monkeypatch):
    draws = [[[10, 10], [0, 0]], [[10, 5], [0, 5]], [[10, 9], [0, 1]]]
    draws = iter([np.array(draw) for draw in draws])
    monkeypatch.setattr(dirichlet, "_dirichlet_counts", lambda *_: next(draws))
    options = {"min_size": 8, "max_retries": 2, "test_fraction": 0}
    p = make_partition("dirichlet", toy(20, classes=2), 2, 0, **options)
    # The second draw lacks 3, which the largest client gives of its largest class.
    assert counts(p, toy(20, classes=2)).tolist() == [[7, 5], [3, 5]]
    assert next(draws, None) is None


def test_dirichlet_official_test_follows_train():
    dataset = toy(20000, 10000)
    p = make_partition("dirichlet", dataset, 10, 0, test_split="official")
    assert p.sizes("train").sum() == 20000
    assert p.sizes("test").sum() == 10000
    np.testing.assert_allclose(counts(p, dataset, "test"), counts(p, dataset) / 2, atol=1)


def test_dirichlet_fallback_reaches_the_minimum_and_says_so():
    p = make_partition("dirichlet", POOLED, 100, 0, alpha=0.05, min_size=20, max_retries=2)
    assert (p.sizes("train") + p.sizes("test")).tolist() == [20] * 100
    assert p.options["fallback_used"] is True
    assert p.report(POOLED.labels, 10)["fallback_used"] is True
    assert "samples moved" in p.summary()
    easy = make_partition("dirichlet", POOLED, 4, 0, alpha=10.0)
    assert easy.options["fallback_used"] is False
    assert "samples moved" not in easy.summary()


@pytest.mark.parametrize("rule", ["dirichlet", "dirichlet_uncapped"])
@pytest.mark.parametrize("alpha", [1e-300, 1e-4, 1e308])
def test_dirichlet_extreme_settings_terminate(alpha, rule):
    dataset = toy(900)
    for min_size in (1, 3):
        options = {"alpha": alpha, "min_size": min_size, "max_retries": 9}
        p = make_partition(rule, dataset, 300, 0, **options)
        assert (p.sizes("train") + p.sizes("test")).min() >= min_size
        assert p.sizes("train").min() >= 1
        if alpha > 1:  # the limit is equal shares, up to rounding per class
            assert np.ptp(p.sizes("train") + p.sizes("test")) <= 10
    with pytest.raises(InputError, match="min_size must be at most 3 for 300 clients that share 9"):
        make_partition(rule, dataset, 300, 0, alpha=alpha)


@settings(max_examples=20, deadline=None)
@given(
    clients=st.integers(1, 60),
    alpha=st.sampled_from([1e-300, 1e-4, 0.1, 10.0, 1e308]),
    seed=st.integers(0, 10**6),
    balanced=st.booleans(),
)
def test_dirichlet_per_client_sizes(clients, alpha, seed, balanced):
    dataset = toy(1500, classes=7, balanced=balanced, seed=4)
    p = make_partition("dirichlet_per_client", dataset, clients, seed, alpha=alpha)
    assert (p.sizes() + p.sizes("test")).tolist() == [1500 // clients] * clients
    assert 0 <= p.options["drifted_clients"] <= clients


def test_dirichlet_per_client_follows_its_draw_until_classes_run_out():
    few = make_partition("dirichlet_per_client", POOLED, 2, 0, alpha=1e6)
    assert few.options["drifted_clients"] == 0
    np.testing.assert_allclose(all_counts(few, POOLED), 100, atol=1)
    narrow = make_partition("dirichlet_per_client", POOLED, 20, 0, alpha=0.01)
    assert narrow.options["drifted_clients"] > 0
    assert np.sum(all_counts(narrow, POOLED) > 0, axis=1).mean() < 3
