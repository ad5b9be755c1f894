"""FedCAC against its reference, and who collaborates."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.algorithms.fedcac import FedCAC, overlaps
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import fedcac

algorithm = maker("fedcac")


def check_collaborators(now):
    weights = np.eye(now.case.num_clients)
    for i, others in now.wanted["collaborators"].items():
        weights[i, [i, *others]] = 1 / (1 + len(others))
        assert now.clients["collaborators"][i] == len(others)
    np.testing.assert_allclose(now.record["matrices"]["mixing"], weights, 1e-9)
    shares = now.present * now.case.sizes
    shares = shares / shares.sum()
    np.testing.assert_allclose(now.record["matrices"]["server"], [shares], 1e-9)
    own = 0.3 * np.diagonal(weights) + 0.7 * shares  # of critical parameters and of the others
    own = np.where(now.present, own, np.nan)
    np.testing.assert_allclose(now.clients["self_weight"], own, 1e-9)


def check_end(one):
    together = [others for models in one.wanted for others in models["collaborators"].values()]
    assert any(together) or one.pattern == "single"


test_reference, test_contract = comparison(
    "fedcac",
    fedcac.run,
    # In the third round only the nearest pair is left.
    settings={"tau": 0.3, "beta": 3.0},
    states={"server": "global", "critical": "critical"},
    scores={"global": "global", "personalized": "personalized"},
    check=check_collaborators,
    finish=check_end,
)


@pytest.mark.costly
def test_custom_models_are_means_of_uploads():
    """Here these hardly differ from the first model."""
    private = {"dp": "client", "dp_clip": 1e-6, "dp_noise": 1e-3}
    before, after = states_of(algorithm(), toy_federation(validation_size=0, **private), 1)
    assert_close(after.custom, before.custom, "custom", 1e-5)


def test_most_sensitive_with_ties_and_entries_that_did_not_move():
    old = jnp.asarray([[0.0, 1, 2, 3, 4, 5], [1.0, 1, 1, 1, 1, 1]])
    new = old + jnp.asarray([[1.0, 0, 0, 0, 0, 0], [1.0, 1, -2, 0, 0, 0]])
    most_sensitive = jax.jit(FedCAC.most_sensitive)
    # scores: 1 and zeros; 2, 2, 2 (of -2 times -1) and zeros
    for tau, wanted in ((0.2, [1, 3]), (0.5, [1, 3]), (1.0, [1, 3]), (0.1, [0, 0])):
        found = most_sensitive(FedCAC(tau=tau), old, new)
        np.testing.assert_array_equal(found.sum(axis=1), wanted)


def test_collaborators():
    """The nearest pair is left in round beta; equal overlaps are all of them, until then."""
    overlap = jnp.asarray([[1.0, 0.9, 0.5, 0.1], [0.9, 1, 0.6, 1], [0.5, 0.6, 1, 1], [1] * 4])
    present = jnp.array([True, True, True, False])  # mean 2 / 3, largest 0.9
    collaborators = partial(jax.jit(FedCAC.collaborators), FedCAC(beta=4))

    def pairs(t, overlap=overlap):
        chosen = np.array(collaborators(t, overlap, present))
        assert (np.diagonal(chosen) == np.asarray(present)).all() and not chosen[:, 3].any()
        return {(i, j) for i, j in np.argwhere(chosen) if i < j}

    assert [pairs(t) for t in (0, 3, 4)] == [{(0, 1)}, {(0, 1)}, set()]
    even = jnp.full((4, 4), 0.7)
    assert [len(pairs(t, even)) for t in (0, 3, 4)] == [3, 3, 0]
    alone = collaborators(0, overlap, jnp.array([False, True, False, False]))
    np.testing.assert_array_equal(alone, np.diag([0, 1, 0, 0]))


def test_overlaps():
    masks = [np.array([[1, 0], [1, 1]]), np.array([[1, 1, 0], [0, 1, 0]])]
    critical = [jnp.asarray(mask, bool) for mask in masks]
    found = jax.jit(overlaps, static_argnums=1)(critical, jnp.float32)
    np.testing.assert_allclose(found, [[1, 0.8], [0.8, 1]], 1e-6)


@pytest.mark.costly
def test_divergence_with_private_layers():
    federation = toy_federation(share="body", diverging=3, dtype="float32", validation_size=0)
    states = states_of(algorithm(), federation, 2)
    for before, after in itertools.pairwise(states):
        moved = np.asarray(before.private["params"]["head"]["bias"]) != np.asarray(
            after.private["params"]["head"]["bias"]
        )
        assert moved.any(axis=1).tolist() == [True, True, True, False, True]
    assert not any(leaf[3].any() for leaf in jax.tree.leaves(states[-1].critical))
