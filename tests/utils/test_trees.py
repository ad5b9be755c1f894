"""Rows of stacked models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.utils import trees


def test_take_of_everybody_copies_nobody():
    stack = {"a": jnp.arange(6.0).reshape(3, 2), "b": jnp.arange(3)}
    assert trees.take(stack, np.arange(3)) is stack
    for rows in (np.array([0, 2, 1]), np.arange(2), np.array([0, 1, 1])):
        taken = trees.take(stack, rows)
        np.testing.assert_array_equal(taken["a"], np.asarray(stack["a"])[rows])
        np.testing.assert_array_equal(taken["b"], rows)


def test_expand_to():
    leaf = jnp.zeros((2, 3, 4))
    assert trees.expand_to(leaf, jnp.ones(2)).shape == (2, 1, 1)
    assert trees.expand_to(leaf, jnp.ones((2, 3))).shape == (2, 3, 1)
    assert trees.expand_to(jnp.zeros(2), jnp.ones(2)).shape == (2,)


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(130, 127), (2**14,), (5, 5, 32, 24)])
def test_a_wide_leaf_is_searched_to_its_corners(shape):
    """Parts of a wide leaf are combined first: no place of any part may be left out."""
    clean = np.ones((4, *shape), np.float32)
    size = clean[0].size
    for value, places in ((np.nan, (0, size // 3)), (np.inf, (size - 1, size // 2 + 1))):
        stack = clean.copy()
        for row, place in zip((1, 3), places, strict=True):
            stack[row].flat[place] = value
        tree = {"kernel": jnp.asarray(stack), "steps": jnp.arange(4)}
        expected = [True, False, True, False]
        np.testing.assert_array_equal(trees.rows_finite(tree, 4), expected)
        np.testing.assert_array_equal(jax.vmap(trees.is_finite)(tree), expected)
