"""Clipping bounds every row, noise has its deviation, and the bound adapts to the quantile."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.uploads import clipping


def test_rows_are_clipped_over_all_leaves():
    x = {"a": jnp.asarray([[3.0, 0], [0.3, 0]]), "b": jnp.asarray([[4.0], [0.4]])}
    sent, norms = clipping.clip_rows(x, 1.0)
    np.testing.assert_allclose(norms, [5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(sent["a"], [[0.6, 0], [0.3, 0]], rtol=1e-6)
    np.testing.assert_allclose(sent["b"], [[0.8], [0.4]], rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_rows_that_are_not_finite_are_zero(bad):
    x = jnp.asarray([[bad, 1.0], [3.0, 4.0], [0.0, 0.0]])
    sent, norms = clipping.clip_rows([x], 1.0)
    np.testing.assert_allclose(sent[0], [[0, 0], [0.6, 0.8], [0, 0]], rtol=1e-6)
    assert norms[0] == np.inf and norms[2] == 0


def test_an_infinite_bound_changes_nothing():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    np.testing.assert_array_equal(clipping.clip_rows([x], jnp.inf)[0][0], x)


@pytest.mark.costly
def test_noise_is_independent_and_of_its_deviation():
    keys = jax.random.split(jax.random.key(0), 3)
    zeros = {"a": jnp.zeros((3, 100, 100)), "b": jnp.zeros((3, 10000))}
    noise = clipping.add_noise(keys, zeros, 0.3)
    rows = np.stack([np.asarray(x).reshape(3, -1) for x in noise.values()]).reshape(6, -1)
    np.testing.assert_allclose(rows.std(1), 0.3, rtol=0.02)
    assert np.abs(np.corrcoef(rows)[np.triu_indices(6, 1)]).max() < 4 / np.sqrt(10000)
    alone = clipping.add_noise(keys[1:2], jax.tree.map(lambda x: x[:1], zeros), 0.3)
    np.testing.assert_array_equal(alone["a"][0], noise["a"][1])  # its own key decides


def test_the_bound_goes_to_the_quantile():
    """Log-normal norms of median 1: the rule ends near 1, where counting the clipped ends at 0."""
    rng, bound = np.random.default_rng(0), jnp.asarray(0.1)
    for _ in range(200):
        norms = jnp.asarray(rng.lognormal(size=100))
        bound = clipping.next_bound(bound, norms, jnp.ones(100, bool), rng.normal() * 5, 100)
    assert 0.7 < bound < 1.4


def test_the_bound_divides_by_the_expected_members():
    """Three of the four norms of members are within 2: a sum of 1; five members are expected."""
    norms, mask = jnp.asarray([1.0, 2, 0.5, 3, 1]), jnp.asarray([True] * 4 + [False])
    after = clipping.next_bound(jnp.asarray(2.0), norms, mask, 0.0, 5, quantile=0.4, rate=0.3)
    np.testing.assert_allclose(after, 2 * np.exp(-0.3 * (1 / 5 + 0.5 - 0.4)), rtol=1e-6)


def test_released_count_of_the_bound_changes_by_half_a_client():
    """Whatever one client's norm is, against its absence: the sensitivity that `split_noise` has.

    A zero update, such as a failed client's, counts as absence.
    """
    others = [0.5, 3.0, 1.0]

    def released(norm, present=True):
        norms, mask = jnp.asarray([*others, norm]), jnp.asarray([True] * 3 + [present])
        after = clipping.next_bound(jnp.asarray(2.0), norms, mask, 0.0, 4.0)
        return 4 * (0.5 - np.log(after / 2.0) / 0.2)

    absent = released(1.0, present=False)
    changes = [released(norm) - absent for norm in (0.0, jnp.inf, 1.0, 2.0, 9.0)]
    np.testing.assert_allclose(changes, [0, 0, 0.5, 0.5, -0.5], atol=1e-5)


def test_split_noise_composes():
    """z_D and 2 s_b together cost as much as z: 1 / z^2 = 1 / z_D^2 + 1 / (2 s_b)^2."""
    z = clipping.split_noise(1.0, 5.0)
    np.testing.assert_allclose(z**-2 + 10.0**-2, 1.0, rtol=1e-6)
    assert clipping.split_noise(10.0, 5.0) == np.inf and clipping.split_noise(0.0, 5.0) == 0
