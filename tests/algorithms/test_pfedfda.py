"""pFedFDA against its reference: Gaussians, beta, heads; rare classes, new clients, noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.algorithms.pfedfda import Gaussians, PFedFda, first_of_ties, nearest
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.training.sample_features import SampleFeatures
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import pfedfda

CLASSES, WIDTH = 3, 5


algorithm = maker("pfedfda")


def first_means(one):
    known = one.states[0].known
    means = np.asarray(known.means)
    assert means.min() >= 0 and means.max() <= 1 and np.std(means) > 0.1
    np.testing.assert_array_equal(known.covariance, np.eye(WIDTH))
    return {"means": means}


def check(now):
    for i, beta in now.wanted["beta"].items():
        found = [now.clients[f"beta_{k}"][i] for k in ("means", "covariance")]
        np.testing.assert_allclose(found, beta, 1e-9, 1e-12)
    for way in ("up", "down"):
        np.testing.assert_array_equal(now.clients[f"numbers_{way}"], 30 * now.present)
    np.testing.assert_array_equal(now.clients["forward_samples"], now.case.sizes * now.present)


def finish(one):
    chosen = [b for models in one.wanted for pair in models["beta"].values() for b in pair]
    assert len({round(b, 2) for b in chosen}) > 3, chosen


test_reference, test_contract = comparison(
    "pfedfda",
    pfedfda.run,
    variants={"default": {}, "single": {"single": True, "min_samples": 1, "epsilon": 0.1}},
    given=first_means,
    states={
        "server.params.hidden": "global.hidden",
        "known.means": "means",
        "known.covariance": "covariance",
    },
    scores={"personalized": "personalized"},
    check=check,
    finish=finish,
    new_clients=lambda one, made: one.wanted[-1]["personalized"],
)


@pytest.fixture(scope="module")
def worked():
    """Gaussians, and a client's features: six of two classes, one of a third, one of padding."""
    rng = np.random.default_rng(0)
    labels = np.array([0, 0, 1, 1, 0, 1, 2, 0])
    z = rng.normal(size=(8, WIDTH)) + np.eye(CLASSES, WIDTH)[labels] * 3
    known = rng.normal(size=(CLASSES, WIDTH)), np.eye(WIDTH)
    return known, z, labels


def jitted(method, known, z, labels, valid):
    with jax.enable_x64(True):
        seen = SampleFeatures(*map(jnp.asarray, (z, labels, valid)))
        return jax.jit(method)(Gaussians(*map(jnp.asarray, known)), seen)


def test_first_of_ties():
    """A loss that is larger by rounding only is a tie, and the smaller beta has it."""
    for apart, wanted in ((5e-6, 1), (5e-5, 2)):
        losses = np.array([[2.0, 1.0 + apart], [1.0, np.inf]])
        assert first_of_ties(losses) == wanted


@pytest.mark.costly
@pytest.mark.parametrize("count", [4, 7])
def test_best_beta_with_padding_and_classes_of_one_sample(worked, count):
    known, z, labels = worked
    valid = np.arange(8) < count
    prior = pfedfda.prior_of(labels[valid], CLASSES, 1e-4)
    options = {"single": False, "least": 2, "epsilon": 1e-4}
    wanted = pfedfda.best_beta(z[valid], labels[valid], known, prior, **options)
    assert max(wanted) > 0
    found = jitted(PFedFda(min_samples=2).best_beta, known, z, labels, valid)
    np.testing.assert_allclose(found, wanted, 1e-12)


@pytest.mark.costly
@pytest.mark.parametrize("rows", [(), (0, 1, 2), (0, 1, 2, 6)])
def test_adapted_gaussians_of_few_samples(worked, rows):
    """They are the server's; of classes with one sample none counts."""
    known, z, labels = worked
    valid = np.isin(np.arange(8), rows)
    own, beta = jitted(PFedFda().adapted, known, z, labels, valid)
    np.testing.assert_array_equal(beta, [0, 0])
    np.testing.assert_array_equal(own.means, known[0])
    np.testing.assert_array_equal(own.covariance, known[1])


@pytest.mark.costly
def test_diverged_clients_and_robust_rules_of_pfedfda():
    options = {"validation_size": 0, "dtype": "float32", "model": TanhNetwork(), "diverging": 3}
    (plain, records), (robust, _) = (
        run_rounds(algorithm(), toy_federation(**options, **rule), 1, scored=())
        for rule in ({}, {"aggregator": "median"})
    )
    clients = records[0]["clients"]
    np.testing.assert_array_equal(clients["numbers_up"], [30, 30, 30, 0, 30])
    np.testing.assert_array_equal(clients["numbers_down"], 30)
    assert_close(robust[1].known, plain[1].known, "Gaussians", 1e-6)
    with pytest.raises(AssertionError):
        assert_close(robust[1].server, plain[1].server, "body", 1e-6)


@pytest.mark.costly
def test_covariance_of_pfedfda_with_noise():
    noise = {"dp": "client", "dp_clip": 1.0, "dp_noise": 5.0}
    federation = toy_federation(validation_size=0, model=TanhNetwork(), **noise)
    for state in states_of(algorithm(epsilon=0.01), federation, 2):
        values = np.linalg.eigvalsh(state.known.covariance)
        assert values.min() >= 0.01 - 1e-6
    assert values.min() < 0.02  # the noise alone would leave less


def test_nearest_covariance():
    """Noise leaves no asymmetry, and no eigenvalue below the least."""
    noisy = jnp.array([[2.0, 1.0], [0.0, -3.0]])
    found = np.asarray(nearest(noisy, 0.5))
    np.testing.assert_allclose(found, found.T, 1e-6)
    values, axes = np.linalg.eigh([[2.0, 0.5], [0.5, -3.0]])
    np.testing.assert_allclose(found, axes @ np.diag([0.5, values[1]]) @ axes.T, 1e-5)
