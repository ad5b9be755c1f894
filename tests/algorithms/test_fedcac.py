"""FedCAC against its reference, its limits, and who collaborates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedcac import FedCAC, overlaps
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_models,
    assert_steps,
    over,
    sampled_federation,
)
from tests.references import fedcac

# With beta 3 the third round has only the nearest pair; with 2 it has none.
VARIANTS = {"three": {"tau": 0.5, "beta": 3.0}, "two": {"tau": 0.3, "beta": 2.0}}


def algorithm(**settings):
    return pfl.make_algorithm("fedcac", settings)


@over(PATTERNS, [("partial-map", "three"), ("full-vmap", "two")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common = case.common()
    wanted = fedcac.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    together = 0
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_models({"params": state.critical}, models["critical"], "critical")
        case.assert_two_models(record, models)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        weights = np.eye(case.num_clients)
        for i, others in models["collaborators"].items():
            weights[i, [i, *others]] = 1 / (1 + len(others))
            assert record["clients"]["collaborators"][i] == len(others)
            together += len(others)
        np.testing.assert_allclose(record["matrices"]["mixing"], weights, 1e-9)
        present = case.present(t)
        shares = present * case.sizes
        np.testing.assert_allclose(record["matrices"]["server"], [shares / shares.sum()], 1e-9)
        case.assert_whole_models(record, t)
    assert together or pattern == "single"


@pytest.mark.thorough
def test_without_critical_parameters_it_is_fedavg():
    federation = sampled_federation()
    ours, fedavg = (
        states_of(one, federation, 3) for one in (algorithm(tau=0), pfl.make_algorithm("fedavg"))
    )
    assert_close(ours[-1].server, fedavg[-1].server, "server", 1e-12)
    assert not any(leaf.any() for leaf in jax.tree.leaves(ours[-1].critical))


@pytest.mark.thorough
def test_with_critical_parameters_only_it_is_local_training():
    federation = toy_federation(validation_size=0, local_epochs=2, model=TanhNetwork())
    one, local = algorithm(tau=1, beta=0.5), pfl.make_algorithm("local")
    ours, theirs = (states_of(each, federation, 3)[-1] for each in (one, local))
    assert_close(ours.custom, theirs.models["params"], "models", 1e-12)


@pytest.mark.thorough
def test_custom_models_are_means_of_uploads():
    """Here these hardly differ from the first model."""
    private = {"dp": "client", "dp_clip": 1e-6, "dp_noise": 1e-3}
    before, after = states_of(algorithm(), toy_federation(validation_size=0, **private), 1)
    assert_close(after.custom, before.custom, "custom", 1e-5)


def test_ties_at_the_threshold_and_entries_that_did_not_move():
    old = jnp.asarray([[0.0, 1, 2, 3, 4, 5], [1.0, 1, 1, 1, 1, 1]])
    new = old + jnp.asarray([[1.0, 0, 0, 0, 0, 0], [1.0, 1, -2, 0, 0, 0]])
    # scores: 1 and zeros; 2, 2, 2 (of -2 times -1) and zeros
    for tau, wanted in ((0.2, [1, 3]), (0.5, [1, 3]), (1.0, [1, 3]), (0.1, [0, 0])):
        found = FedCAC(tau=tau).most_sensitive(old, new)
        np.testing.assert_array_equal(found.sum(axis=1), wanted)


def test_who_collaborates():
    """The nearest pair is left in round beta; equal overlaps are all of them, until then."""
    overlap = jnp.asarray([[1.0, 0.9, 0.5, 0.1], [0.9, 1, 0.6, 1], [0.5, 0.6, 1, 1], [1] * 4])
    present = jnp.array([True, True, True, False])  # mean 2 / 3, largest 0.9
    one = FedCAC(beta=4)

    def pairs(t, overlap=overlap):
        chosen = np.array(one.collaborators(t, overlap, present))
        assert (np.diagonal(chosen) == np.asarray(present)).all() and not chosen[:, 3].any()
        return {(i, j) for i, j in np.argwhere(chosen) if i < j}

    assert [pairs(t) for t in (0, 3, 4)] == [{(0, 1)}, {(0, 1)}, set()]
    even = jnp.full((4, 4), 0.7)
    assert [len(pairs(t, even)) for t in (0, 3, 4)] == [3, 3, 0]
    alone = one.collaborators(0, overlap, jnp.array([False, True, False, False]))
    np.testing.assert_array_equal(alone, np.diag([0, 1, 0, 0]))


def test_overlaps_count_differing_entries():
    masks = [np.array([[1, 0], [1, 1]]), np.array([[1, 1, 0], [0, 1, 0]])]
    found = overlaps([jnp.asarray(mask, bool) for mask in masks], jnp.float32)
    np.testing.assert_allclose(found, [[1, 0.8], [0.8, 1]], 1e-6)


def test_some_layers_are_shared():
    algorithm().check(toy_federation(share="body"))


@pytest.mark.thorough
def test_private_layers_stay_and_who_diverges_keeps_its_mask():
    federation = toy_federation(share="body", diverging=3, dtype="float32", validation_size=0)
    states = states_of(algorithm(), federation, 2)
    for before, after in itertools.pairwise(states):
        moved = np.asarray(before.private["params"]["head"]["bias"]) != np.asarray(
            after.private["params"]["head"]["bias"]
        )
        assert moved.any(axis=1).tolist() == [True, True, True, False, True]
    assert not any(leaf[3].any() for leaf in jax.tree.leaves(states[-1].critical))
