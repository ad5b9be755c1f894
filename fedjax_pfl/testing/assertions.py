"""Assertions on the states and records of rounds."""

import chex
import numpy as np

from fedjax_pfl.aggregation import mixing
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.utils.typing import Tree


def assert_finite_and_stochastic(algorithm: Algorithm, state: Tree, record: dict) -> None:
    """Assert that a round's state is finite and its mixing matrices are row-stochastic."""
    chex.assert_tree_all_finite(state, custom_message="the state is not finite")
    lost = np.flatnonzero(record["clients"]["nonfinite"]).tolist()
    assert not lost, (
        f"clients {lost} trained, and what the round made of their values is not finite"
    )
    if algorithm.row_stochastic:
        for matrix in record["matrices"].values():
            if matrix.shape[-2] > 1 or matrix.any():  # a single row of zeros: nothing aggregated
                mixing.check(matrix)
        _assert_self_weights(record["clients"], record["matrices"])


def _assert_self_weights(clients: dict, matrices: dict) -> None:
    """Assert that self-weights are the mean diagonal of the mixing matrix, NaN if absent."""
    pairs = {name: matrix for name, matrix in matrices.items() if matrix.shape[-2] > 1}
    if "mixing" in pairs or len(pairs) == 1:
        matrix = pairs["mixing"] if "mixing" in pairs else next(iter(pairs.values()))
        own = np.diagonal(matrix, axis1=-2, axis2=-1).reshape(-1, matrix.shape[-1]).mean(axis=0)
        member = clients["participated"] & ~clients["diverged"]
        wanted = np.where(member, own, np.nan)
        message = "self_weight is not the diagonal of the recorded matrix"
        np.testing.assert_allclose(clients["self_weight"], wanted, 1e-9, 1e-12, err_msg=message)
