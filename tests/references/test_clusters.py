"""References of clustered learning: bipartitions of CFL, first models of IFCA."""

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from tests.references import cfl, ifca, network
from tests.references.small import COUNT

# ---- CFL


def point(*numbers):
    return {"head": {"kernel": np.array([numbers]), "bias": np.zeros(1)}}


def similarities(seed, count):
    vectors = np.random.default_rng(seed).normal(size=(count, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


@pytest.mark.parametrize("linkage", cfl.LINKAGES)
@pytest.mark.parametrize("seed", range(5))
def test_two_groups_are_those_of_scipy(linkage, seed):
    similarity = similarities(seed, 9)
    gaps = squareform(1 - similarity, checks=False)
    labels = hierarchy.fcluster(hierarchy.linkage(gaps, linkage), 2, "maxclust")
    first, second = cfl.two_groups(similarity, linkage)
    assert 0 in first
    assert sorted(first + second) == list(range(9))
    np.testing.assert_array_equal(labels == labels[0], np.isin(np.arange(9), first))


def test_ties_go_to_the_lowest_members():
    assert cfl.two_groups(np.ones((4, 4))) == [[0, 1, 2], [3]]
    assert cfl.two_groups(np.ones((2, 2))) == [[0], [1]]
    halves = np.kron(np.eye(2), np.ones((2, 2)))
    assert cfl.two_groups(halves) == [[0, 1], [2, 3]]


def test_halves_must_be_far_enough_apart_for_gamma_max():
    updates = [point(1.0, 0.0), point(2.0, 0.0), point(0.0, 1.0)]
    gap = np.sqrt(0.5)  # sqrt((1 - 0) / 2)
    assert cfl.bipartition(updates, "single", gap - 1e-9) == ([0, 1], [2])
    assert cfl.bipartition(updates, "single", gap) is None
    assert cfl.bipartition(updates, "single") == ([0, 1], [2])
    still = [point(0.0, 0.0), point(0.0, 0.0), point(1.0, 0.0)]
    assert cfl.bipartition(still) == ([0, 1], [2])  # a cosine with nothing is 0


# ---- IFCA


def drawn(count, seed=4):
    rng = np.random.default_rng(seed)
    return [network.random_parameters(rng, 5, 6, 4) for _ in range(count)]


@pytest.fixture
def several(setting):
    """The setting with three first models."""
    return setting.but(initial=drawn(3))


def test_balanced_first_models(several):
    clients, x, y = several.clients, several.x, several.y

    def least(models):
        chosen = [ifca.choose(models, client["samples"], x, y) for client in clients]
        return min(chosen.count(k) for k in range(len(models))) / COUNT

    draws = [drawn(2, seed) for seed in range(12)]
    shares = [least(models) for models in draws]
    assert 0.0 in shares and 0.5 in shares  # 0.25 of four clients would not do
    assert ifca.balanced(draws, clients, x, y) is draws[shares.index(0.5)]
    assert ifca.balanced(draws, clients, x, y, share=0.0) is draws[0]
    worse = [models for models, share in zip(draws, shares, strict=True) if share < 0.35]
    most = max(least(models) for models in worse)
    best = [models for models in worse if least(models) == most]
    assert len(best) > 1
    assert ifca.balanced(worse, clients, x, y) is best[0]
    four = [drawn(4, seed) for seed in range(3)]  # a tenth of four clients is one of them
    assert ifca.balanced(four, clients, x, y, share=0.1) is ifca.balanced(four, clients, x, y)
