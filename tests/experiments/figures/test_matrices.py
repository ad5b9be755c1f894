"""Recorded matrices as they are drawn, against what the runs recorded."""

import numpy as np
import pytest

from experiments.figures import matrices
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import assert_input_error

from .conftest import CLIENTS, ROUNDS, SEEDS, meshes, rows_of


def test_matrices_by_round(found):
    run = found["main", "feddwa"]
    drawn = matrices.by_round([run], rounds="first,3", seed=1)
    recorded = run.matrix("mixing")[1, :, 0]
    shown = meshes(drawn.figure)
    assert len(shown) == 2
    for picture, weights in zip(shown, recorded[[0, 2]], strict=True):
        np.testing.assert_allclose(picture, weights)
    np.testing.assert_array_equal(matrices.group_borders(run), [1.5])
    assert {row[2] for row in rows_of(drawn)} == {1}
    assert_input_error(r"--seed must be one of 0, 1", matrices.by_round, [run], seed=2)
    with pytest.raises(InputError, match=r"rounds 1, 2, 3, not of '7': run with --matrix_rounds=7"):
        matrices.by_round([run], rounds="7")


def test_matrices_by_layer(found, layered):
    run, alpha = layered
    drawn = matrices.by_round([run, found["main", "feddwa"]], matrix="alpha", rounds="last")
    for picture, weights in zip(meshes(drawn.figure), alpha[0, -1], strict=True):
        np.testing.assert_allclose(picture, weights)  # FedDWA records no alpha
    assert [axes.get_title() for axes in drawn.axes] == ["fc_0", "head"]
    assert len(drawn.numbers) == 2 * CLIENTS**2
    drawn = matrices.by_round([run], matrix="alpha", block="head")
    assert len(drawn.axes) == ROUNDS and run.seeds == list(SEEDS)
    with pytest.raises(InputError, match=r"Unknown group of layers 'haed'. Did you mean 'head'"):
        matrices.by_round([run], matrix="alpha", block="haed")
