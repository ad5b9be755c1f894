"""What one process alone does with values of several devices."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.execution import processes
from fedjax_pfl.execution.mesh import CLIENTS, mesh_of, place


def test_what_is_fetched_is_not_kept_beside_the_array():
    """The whole of an array on several devices is joined on the host, and is the caller's alone."""
    values = np.arange(12.0).reshape(4, 3)
    on_both = place(values, mesh_of(2), CLIENTS)
    everywhere = place(values, mesh_of(2), None)
    tree = [on_both, everywhere, jnp.float32(3), np.int32(5), jnp.zeros((0, 2))]
    result = processes.gather_to_host(tree)
    wanted = jax.device_get(tree)
    assert all(type(leaf) is np.ndarray for leaf in result)
    jax.tree.map(np.testing.assert_array_equal, result, wanted)
    assert result[0].flags.writeable  # what JAX keeps can't be written to


def test_pieces_are_parts_of_arrays_one_after_the_other():
    arrays = [np.arange(n, dtype=np.uint8) + 10 * n for n in (3, 0, 5, 1)]
    ends, whole = np.cumsum([len(array) for array in arrays]).tolist(), np.concatenate(arrays)
    for start, end in ((0, 9), (0, 3), (2, 4), (3, 8), (4, 9)):
        piece = np.zeros(end - start, np.uint8)
        for part, at in processes._parts(arrays, ends, start, end):
            piece[at : at + len(part)] = part
        np.testing.assert_array_equal(piece, whole[start:end])
