"""Rows of stacked models."""

import jax.numpy as jnp
import numpy as np

from fedjax_pfl import trees


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
