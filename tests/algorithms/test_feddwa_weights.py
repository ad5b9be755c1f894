"""FedDWA's weights on small models, and guidance that overflows."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import mixing
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation


def row(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


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
