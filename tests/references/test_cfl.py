"""CFL's reference: bipartitions, when a cluster is halved, FedAvg as its limit, absent members."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform

from tests.references import cfl, fedavg, network
from tests.references.local_sgd import sgd
from tests.references.small import (
    COUNT,
    EVERYBODY,
    PARTIAL,
    RATES,
    ROUNDS,
    assert_same,
    flat,
    identical,
    stack,
)

ALWAYS = {"mean_below": np.inf, "largest_above": 0.0, "first_split": 0}


def point(*numbers):
    return {"head": {"kernel": np.array([numbers]), "bias": np.zeros(1)}}


def similarities(seed, count):
    vectors = np.random.default_rng(seed).normal(size=(count, 4))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


def updates_of(setting, models, clusters, t):
    x, y = setting["x"], setting["y"]
    return [
        flat(sgd(models[k], setting["batches"][t][i], x, y, RATES[t])) - flat(models[k])
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
    return {
        **setting,
        "clients": [{"samples": samples} for samples in split],
        "x": x,
        "y": y,
        "sizes": [12] * 7,
        "cohorts": [list(range(7))] * ROUNDS,
        "batches": [[[samples] * 4 for samples in split]] * ROUNDS,
    }


# ------------------------------------------------------------------ the bipartition


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


# ------------------------------------------------------------------ the rounds


@pytest.mark.parametrize(
    "never", [{"mean_below": 0.0}, {"first_split": ROUNDS}, {"max_clusters": 1}]
)
@pytest.mark.parametrize("cohorts", [EVERYBODY, PARTIAL])
def test_without_a_split_it_is_fedavg_with_equal_weights(setting, never, cohorts):
    common = {**setting, "cohorts": cohorts}
    history = cfl.run(**common, **{**ALWAYS, **never})
    plain = fedavg.run(**{**common, "sizes": [1] * COUNT})
    for models, expected in zip(history, plain, strict=True):
        assert models["clusters"] == [0] * COUNT
        for model in models["personalized"]:
            assert_same(model, expected["global"])


def test_defaults_do_not_split_in_the_first_twenty_rounds(setting):
    common = {**setting, "rounds": 22, "cohorts": EVERYBODY[:1] * 22, "learning_rate": [0.5] * 22}
    common |= {"batches": setting["batches"][:1] * 22, "mean_below": np.inf, "largest_above": 0.0}
    counts = [len(models["models"]) for models in cfl.run(**common)]
    assert counts[:21] == [1] * 20 + [2]


def test_a_split_separates_the_kinds_and_comes_before_the_average(setting):
    common = sevenfold(setting)
    (models,) = cfl.run(**{**common, "rounds": 1}, **ALWAYS)
    assert models["clusters"] == [0, 1, 1, 0, 1, 0, 1]
    moves = updates_of(common, [setting["initial"]], [0] * 7, 0)
    for cluster, members in ((0, [0, 3, 5]), (1, [1, 2, 4, 6])):
        expected = flat(setting["initial"]) + np.mean([moves[i] for i in members], axis=0)
        np.testing.assert_allclose(flat(models["models"][cluster]), expected, rtol=1e-11)
    mean, largest = models["norms"][0]
    assert mean == pytest.approx(np.linalg.norm(np.mean(moves, axis=0)), rel=1e-11)
    assert largest == pytest.approx(max(np.linalg.norm(move) for move in moves), rel=1e-11)


def test_second_splits_name_clients_and_not_positions(setting):
    """Published code takes positions within the cluster for clients."""
    common = sevenfold(setting)
    history = cfl.run(**common, **ALWAYS)
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


def test_clusters_are_bounded_lower_numbers_first(setting):
    history = cfl.run(**sevenfold(setting), **ALWAYS, max_clusters=3)
    assert [len(models["models"]) for models in history] == [2, 3, 3]
    assert history[-1]["tree"][1]["cluster"] == 0


def test_thresholds_are_strict_and_two_clients_are_too_few(setting):
    common = {**setting, "rounds": 1, "first_split": 0}
    mean, largest = cfl.run(**common)[0]["norms"][0]

    def count(**options):
        return len(cfl.run(**{**common, **options})[0]["models"])

    assert count(mean_below=mean, largest_above=0.0) == 1
    assert count(mean_below=np.nextafter(mean, 9.0), largest_above=0.0) == 2
    assert count(mean_below=9.0, largest_above=largest) == 1
    assert count(mean_below=9.0, largest_above=np.nextafter(largest, 0.0)) == 2
    assert count(**ALWAYS, cohorts=[[1, 3]]) == 1
    assert count(**ALWAYS, cohorts=[[1, 2, 3]]) == 2


def test_absent_members_keep_their_number_and_add_nothing(setting):
    """Published code adds the last update of an absent member once more."""
    common = {**setting, "cohorts": [[1, 2, 3], [0], []]}
    first, second, third = cfl.run(**common, **ALWAYS)
    assert first["clusters"][0] == first["clusters"][1] == 0
    assert set(first["clusters"]) == {0, 1}
    step = updates_of(setting, first["models"], first["clusters"], 1)[0]
    expected = flat(first["models"][0]) + step
    np.testing.assert_allclose(flat(second["models"][0]), expected, rtol=1e-11)
    assert second["models"][1] is first["models"][1]
    assert third["models"] == second["models"]
    assert third["clusters"] == second["clusters"]
    assert third["norms"] == {}


def test_identical_clients_are_not_split(setting):
    """The mean's norm is the largest one, never below one bound and above a higher one."""
    for models in cfl.run(**identical(setting), mean_below=0.4, largest_above=0.4, first_split=0):
        assert len(models["models"]) == 1
        mean, largest = models["norms"][0]
        assert mean == pytest.approx(largest, rel=1e-12)


def test_gamma_max_keeps_clusters_whole(setting):
    common = sevenfold(setting)
    assert len(cfl.run(**common, **ALWAYS, linkage="single", gamma_max=1.0)[-1]["models"]) == 1
    assert len(cfl.run(**common, **ALWAYS, linkage="single", gamma_max=0.0)[-1]["models"]) > 2


def test_best_of_tree_looks_along_the_client_s_own_path(setting):
    common = sevenfold(setting)
    last = cfl.run(**common, **ALWAYS)[-1]
    path = [node["model"] for node in last["tree"] if 4 in node["members"]]
    assert len(path) == 2
    other = next(node["model"] for node in last["tree"] if 4 not in node["members"])
    for wanted in (*path, last["personalized"][4]):
        assert cfl.best_of_tree(last, 4, lambda model, w=wanted: float(model is not w)) is wanted
    assert cfl.best_of_tree(last, 4, lambda model: float(model is not other)) is not other
    at = common["clients"][4]["samples"]
    losses = {}

    def loss(model):
        losses[id(model)] = network.loss_and_gradient(model, common["x"][at], common["y"][at])[0]
        return losses[id(model)]

    assert losses[id(cfl.best_of_tree(last, 4, loss))] == min(losses.values())
    assert cfl.best_of_tree(last, 4, lambda model: 0.0) is last["personalized"][4]


def test_one_client_is_sgd(setting):
    single = {**setting, "clients": setting["clients"][:1], "cohorts": [[0]] * ROUNDS}
    model = setting["initial"]
    for t, models in enumerate(cfl.run(**single, **ALWAYS)):
        model = sgd(model, setting["batches"][t][0], setting["x"], setting["y"], RATES[t])
        assert_same(models["personalized"][0], model, rtol=1e-9, atol=1e-12)
        assert stack(models["personalized"]).shape[0] == 1
