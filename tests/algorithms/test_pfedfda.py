"""pFedFDA against its reference: Gaussians, beta, heads; rare classes, new clients, noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.pfedfda import Gaussians, PFedFda, nearest
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.training.sample_features import SampleFeatures
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over
from tests.engine.finals import final_in
from tests.references import pfedfda

VARIANTS = {"default": {}, "single": {"single": True, "min_samples": 1, "epsilon": 0.1}}
CLASSES, WIDTH = 3, 5


def algorithm(**settings):
    return pfl.make_algorithm("pfedfda", settings)


@over(PATTERNS, [("partial-map", "default"), ("full-vmap", "single")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    states, records = case.run_rounds(algorithm(**settings))
    means = np.asarray(states[0].known.means)
    assert means.min() >= 0 and means.max() <= 1 and np.std(means) > 0.1
    np.testing.assert_array_equal(states[0].known.covariance, np.eye(WIDTH))
    common = case.common()
    wanted = pfedfda.run(case.initial(), means, case.clients(), 3, **common, **settings)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        shared = {k: v for k, v in state.server["params"].items() if k != "head"}
        assert_close(shared, models["global"], f"body in round {t}")
        np.testing.assert_allclose(state.known.means, models["means"], 1e-9)
        np.testing.assert_allclose(state.known.covariance, models["covariance"], 1e-9, 1e-12)
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        for i, beta in models["beta"].items():
            found = [record["clients"][f"beta_{k}"][i] for k in ("means", "covariance")]
            np.testing.assert_allclose(found, beta, 1e-9, 1e-12)
        present = np.isin(np.arange(5), case.cohorts[t])
        for way in ("up", "down"):
            np.testing.assert_array_equal(record["clients"][f"numbers_{way}"], 30 * present)
        np.testing.assert_array_equal(record["clients"]["forward_samples"], case.sizes * present)
    chosen = [b for models in wanted for pair in models["beta"].values() for b in pair]
    assert len({round(b, 2) for b in chosen}) > 3, chosen
    final = final_in(states[-1], algorithm(**settings), case.federation, case.rounds)
    made = final.personalize(case.federation)["params"]
    for i, model in enumerate(wanted[-1]["personalized"]):
        ours = jax.tree.map(lambda leaf, i=i: leaf[0, i], made)
        assert_close({k: dict(v) for k, v in ours.items()}, model, f"new client {i}", 1e-8)


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


@pytest.mark.parametrize("count", [4, 7])
def test_padding_and_classes_with_one_sample(worked, count):
    known, z, labels = worked
    valid = np.arange(8) < count
    prior = pfedfda.prior_of(labels[valid], CLASSES, 1e-4)
    options = {"single": False, "least": 2, "epsilon": 1e-4}
    wanted = pfedfda.best_beta(z[valid], labels[valid], known, prior, **options)
    assert max(wanted) > 0
    found = jitted(PFedFda(min_samples=2).best_beta, known, z, labels, valid)
    np.testing.assert_allclose(found, wanted, 1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [(), (0, 1, 2), (0, 1, 2, 6)])
def test_with_few_samples_gaussians_are_the_servers(worked, rows):
    """Of classes with one sample none counts."""
    known, z, labels = worked
    valid = np.isin(np.arange(8), rows)
    own, beta = jitted(PFedFda().adapted, known, z, labels, valid)
    np.testing.assert_array_equal(beta, [0, 0])
    np.testing.assert_array_equal(own.means, known[0])
    np.testing.assert_array_equal(own.covariance, known[1])


@pytest.mark.thorough
def test_who_diverges_sends_nothing_and_robust_rules_are_for_the_body():
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


@pytest.mark.thorough
def test_noise_leaves_a_covariance():
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
