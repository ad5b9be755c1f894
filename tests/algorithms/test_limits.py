"""What an algorithm becomes in the limit: the "reduces to" lines of the specification."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import mixing, similarity
from fedjax_pfl.testing import toys
from fedjax_pfl.testing.toys import assert_close, run_rounds
from tests.algorithms.harness import sampled_federation, stack
from tests.references.feddwa import exact_weights, inverse_distance_weights
from tests.references.network import random_parameters, squared_distance

toy_federation = partial(toys.toy_federation, validation_size=0)  # its scores are not looked at


def algorithm(name, **settings):
    return pfl.make_algorithm(name, settings)


def row(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


@pytest.mark.thorough
def test_no_fine_tuning_is_fedavg():
    federation = sampled_federation()
    states, records = run_rounds(algorithm("fedavg_ft", fine_tune_epochs=0), federation)
    wanted, scored = run_rounds(algorithm("fedavg"), federation)
    assert_close(states[-1].server, wanted[-1].server, "server")
    for record, other in zip(records, scored, strict=True):
        for name, values in other["scores"].items():
            np.testing.assert_allclose(record["scores"][name], values, 1e-12, err_msg=name)


def test_equal_sizes_and_any_distances_made_equal_are_fedavg():
    weights = mixing.inverse(jnp.full((4, 4), 3.0), np.ones(4, bool))
    np.testing.assert_allclose(weights[0], mixing.by_size(jnp.full(4, 9), np.ones(4, bool)), 1e-15)


def orthogonal_models(guide, lengths):
    """Models whose differences to `guide` are orthogonal, of the given lengths."""
    models = []
    for (layer, name, at), length in zip(
        [("hidden", "kernel", (0, 0)), ("hidden", "bias", (1,)), ("head", "kernel", (2, 1))],
        lengths,
        strict=True,
    ):
        model = jax.tree.map(np.copy, guide)
        model[layer][name][at] += length
        models.append(model)
    return models


def feddwa_weights(guide, trained, k=3):
    return weigh(stack([guide]), stack(trained), k)[0]


@jax.jit
def weigh(guide, trained, k):
    distances = similarity.squared_distances(guide, trained)
    return mixing.keep_top_k(mixing.inverse(distances, jnp.ones(distances.shape[1], bool)), k)


def test_feddwa_weights_are_the_exact_ones_where_differences_are_orthogonal():
    guide = random_parameters(np.random.default_rng(0), 4, 5, 3)
    trained = orthogonal_models(guide, (1.0, -(2.0**0.5), 2.0))
    weights = feddwa_weights(guide, trained)
    np.testing.assert_allclose(weights, [4 / 7, 2 / 7, 1 / 7], 1e-12)  # distances 1, 2 and 4
    np.testing.assert_allclose(weights, exact_weights(guide, trained), 1e-12)
    np.testing.assert_allclose(feddwa_weights(guide, trained, 2), [2 / 3, 1 / 3, 0], 1e-12)


def test_feddwa_weights_of_any_models_are_those_of_the_reference():
    rng = np.random.default_rng(1)
    guide, *trained = (random_parameters(rng, 4, 5, 3) for _ in range(5))
    distances = [squared_distance(guide, model) for model in trained]
    for k in (1, 2, 4, 9):
        wanted = inverse_distance_weights(distances, k)
        np.testing.assert_allclose(feddwa_weights(guide, trained, k), wanted, 1e-12)
    assert abs(exact_weights(guide, trained) - wanted).max() > 1e-3  # here they do differ


def test_guidance_that_is_not_finite_takes_its_client_out():
    # Client 2 has one sample: with `drop_last` it trains no step, and its full gradient overflows.
    federation = toy_federation(diverging=2, drop_last=True)
    guided = algorithm("feddwa", guidance="full_gradient")
    states, records = run_rounds(guided, federation, scored=())
    for record in records:
        np.testing.assert_array_equal(record["clients"]["diverged"], [0, 0, 1, 0, 0])
        weights = record["matrices"]["mixing"]
        np.testing.assert_array_equal(weights[2], [0, 0, 1, 0, 0])
        assert not weights[[0, 1, 3, 4], 2].any()
        mixing.check(weights)
    assert_close(row(states[-1].models, 2), row(states[0].models, 2), "client 2", 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states[-1]))


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("fedprox", "proximal_weight", "proximal_weight is 0: trained as FedAvg"),
        ("moon", "mu", "mu is 0: trained as FedAvg"),
        ("fedlc", "tau", "tau is 0: trained as FedAvg"),
        ("fedntd", "beta", "beta is 0: trained as FedAvg"),
        ("fedsam", "rho", "rho is 0: trained as FedAvg"),
        ("ditto", "proximal_weight", "proximal_weight is 0: what is scored was trained locally"),
        ("mrmtl", "proximal_weight", "proximal_weight is 0: trained locally"),
        ("feddbe", "kappa", "kappa is 0: features are not pulled to a common mean"),
        ("fedcac", "tau", "tau is 0: trained as FedAvg"),
        ("apple", "relation_rate", "relation_rate is 0: relations stay as they began"),
    ],
)
def test_a_table_says_that_a_method_is_off(name, key, said):
    """As some libraries have them by default."""
    on, off = (ours.remarks(ours.prepare(toy_federation()))
               for ours in (algorithm(name), algorithm(name, **{key: 0})))  # fmt: skip
    assert on == [] and off == [said]
