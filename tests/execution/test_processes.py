"""What one process alone does with values of several devices."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.execution import processes
from fedjax_pfl.execution.mesh import AXIS, mesh_of, place


def test_what_is_fetched_is_not_kept_beside_the_array():
    """The whole of an array on several devices is joined on the host, and is the caller's alone."""
    values = np.arange(12.0).reshape(4, 3)
    on_both = place(values, mesh_of(2), AXIS)
    everywhere = place(values, mesh_of(2), None)
    tree = [on_both, everywhere, jnp.float32(3), np.int32(5), jnp.zeros((0, 2))]
    found = processes.fetched(tree)
    wanted = jax.device_get(tree)
    assert all(type(leaf) is np.ndarray for leaf in found)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert found[0].flags.writeable  # what JAX keeps can't be written to
