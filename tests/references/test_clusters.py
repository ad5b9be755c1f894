"""References of clustered learning: bipartitions of CFL, first models of IFCA."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from tests.references import cfl, ifca, network
from tests.references.local_sgd import sgd
from tests.references.small import COUNT, RATES, ROUNDS, flat

# ---- CFL


ALWAYS = {"mean_below": np.inf, "largest_above": 0.0, "first_split": 0}


def point(*numbers):
    return {"head": {"kernel": np.array([numbers]), "bias": np.zeros(1)}}


def similarities(seed, count):
    vectors = np.random.default_rng(seed).normal(size=(count, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def updates_of(setting, models, clusters, t):
    x, y = setting.x, setting.y
    return [
        flat(sgd(models[k], setting.batches[t][i], x, y, RATES[t])) - flat(models[k])
        for i, k in enumerate(clusters)
    ]


def sevenfold(setting):
    """Seven clients, four of another kind: their labels are shifted. The kinds are interleaved."""
    rng = np.random.default_rng(6)
    split = np.arange(7 * 12).reshape(7, 12)
    y = rng.integers(0, 4, split.size)
    x = rng.normal(size=(split.size, 5)) + 3 * np.eye(5)[y]
    for i in (1, 2, 4, 6):
        y[split[i]] = (y[split[i]] + 2) % 4
    return setting.but(
        clients=[{"samples": samples} for samples in split],
        x=x,
        y=y,
        sizes=[12] * 7,
        cohorts=[list(range(7))] * ROUNDS,
        batches=[[[samples] * 4 for samples in split]] * ROUNDS,
    )


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


@pytest.mark.parametrize("seed", range(4))
def test_single_linkage_is_the_paper_s_optimal_bipartition(seed):
    similarity = similarities(seed, 7)
    result = cfl.largest_between(similarity, *cfl.two_groups(similarity, "single"))
    least = min(
        cfl.largest_between(similarity, chosen, [k for k in range(7) if k not in chosen])
        for size in range(1, 7)
        for chosen in combinations(range(7), size)
    )
    assert result == least


def test_ties_go_to_the_lowest_members():
    assert cfl.two_groups(np.ones((4, 4))) == [[0, 1, 2], [3]]
    assert cfl.two_groups(np.ones((2, 2))) == [[0], [1]]
    halves = np.kron(np.eye(2), np.ones((2, 2)))
    assert cfl.two_groups(halves) == [[0, 1], [2, 3]]


def test_linkages_differ_on_a_chain():
    angles = np.array([0.0, 0.3, 0.6, 0.9, 1.3])  # the last is a little farther from its neighbour
    similarity = np.cos(angles[:, None] - angles[None])
    assert cfl.two_groups(similarity, "single") == [[0, 1, 2, 3], [4]]
    assert cfl.two_groups(similarity, "complete") != [[0, 1, 2, 3], [4]]


def test_halves_must_be_far_enough_apart_for_gamma_max():
    updates = [point(1.0, 0.0), point(2.0, 0.0), point(0.0, 1.0)]
    gap = np.sqrt(0.5)  # sqrt((1 - 0) / 2)
    assert cfl.bipartition(updates, "single", gap - 1e-9) == ([0, 1], [2])
    assert cfl.bipartition(updates, "single", gap) is None
    assert cfl.bipartition(updates, "single") == ([0, 1], [2])
    still = [point(0.0, 0.0), point(0.0, 0.0), point(1.0, 0.0)]
    assert cfl.bipartition(still) == ([0, 1], [2])  # a cosine with nothing is 0


def test_second_splits_name_clients_and_not_positions(setting):
    """Published code takes positions within the cluster for clients."""
    common = sevenfold(setting)
    history = cfl.run(common, **ALWAYS)
    for t, (before, after) in enumerate(pairwise(history)):
        moves = updates_of(common, before["models"], before["clusters"], t + 1)
        for cluster in before["models"]:
            members = [i for i, own in enumerate(before["clusters"]) if own == cluster]
            kinds = [after["clusters"][i] for i in members]
            if len(members) <= 2:
                assert set(kinds) == {cluster}
                continue
            unit = np.array([moves[i] / np.linalg.norm(moves[i]) for i in members])
            first, second = cfl.two_groups(unit @ unit.T)
            assert {kinds[k] for k in first} == {cluster}  # the lowest client's half
            assert len({kinds[k] for k in second} | {cluster}) == 2
    assert [len(models["models"]) for models in history] == [2, 4, 4]  # once a cluster and round
    assert history[-1]["tree"][0]["members"] == list(range(7))
    assert sorted(history[1]["tree"][2]["members"]) == [1, 2, 4, 6]


# ---- IFCA


def drawn(count, seed=4):
    rng = np.random.default_rng(seed)
    return [network.random_parameters(rng, 5, 6, 4) for _ in range(count)]


@pytest.fixture
def several(setting):
    """The setting with three first models."""
    return setting.but(initial=drawn(3))


def test_two_kinds_of_clients_get_a_model_each(setting):
    """From the same model for all, one round of warm-up by kinds is enough to part them."""
    y = setting.y.copy()
    for i in (1, 3):
        own = setting.clients[i]["samples"]
        y[own] = (y[own] + 2) % 4
    common = setting.but(y=y, initial=drawn(2))
    history = ifca.run(common, groups=[0, 1, 0, 1], warmup_rounds=1)
    assert history[0]["clusters"] == {0: 0, 1: 1, 2: 0, 3: 1}
    for models in history:
        assert models["choices"] == [0, 1, 0, 1]


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
