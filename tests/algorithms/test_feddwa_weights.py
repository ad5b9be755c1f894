"""FedDWA's weights on small models, and guidance that overflows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import mixing, similarity
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import stack
from tests.references.feddwa import exact_weights, inverse_distance_weights
from tests.references.network import random_parameters, squared_distance


def row(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


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


def test_weights_of_orthogonal_differences():
    guide = random_parameters(np.random.default_rng(0), 4, 5, 3)
    trained = orthogonal_models(guide, (1.0, -(2.0**0.5), 2.0))
    weights = feddwa_weights(guide, trained)
    np.testing.assert_allclose(weights, [4 / 7, 2 / 7, 1 / 7], 1e-12)  # distances 1, 2 and 4
    np.testing.assert_allclose(weights, exact_weights(guide, trained), 1e-12)
    np.testing.assert_allclose(feddwa_weights(guide, trained, 2), [2 / 3, 1 / 3, 0], 1e-12)


def test_weights_of_any_models():
    rng = np.random.default_rng(1)
    guide, *trained = (random_parameters(rng, 4, 5, 3) for _ in range(5))
    distances = [squared_distance(guide, model) for model in trained]
    for k in (1, 2, 4, 9):
        wanted = inverse_distance_weights(distances, k)
        np.testing.assert_allclose(feddwa_weights(guide, trained, k), wanted, 1e-12)
    assert abs(exact_weights(guide, trained) - wanted).max() > 1e-3  # here they do differ


@pytest.mark.costly
def test_guidance_that_is_not_finite():
    # Client 2 has one sample: with `drop_last` it trains no step, and its full gradient overflows.
    federation = toy_federation(validation_size=0, diverging=2, drop_last=True)
    guided = pfl.make_algorithm("feddwa", {"guidance": "full_gradient"})
    states, records = run_rounds(guided, federation, scored=())
    for record in records:
        np.testing.assert_array_equal(record["clients"]["diverged"], [0, 0, 1, 0, 0])
        weights = record["matrices"]["mixing"]
        np.testing.assert_array_equal(weights[2], [0, 0, 1, 0, 0])
        assert not weights[[0, 1, 3, 4], 2].any()
        mixing.check(weights)
    assert_close(row(states[-1].models, 2), row(states[0].models, 2), "client 2", 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states[-1]))
