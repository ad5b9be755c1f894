"""Weights and matrices as they are drawn, against what the runs recorded."""

import numpy as np
import pytest

from experiments.figures import feddwa, matrices, pfedla, waffle
from fedjax_pfl.utils.errors import InputError
from tests.experiments.small_runs import assert_input_error

from .conftest import CLIENTS, ROUNDS, SEEDS, meshes, rows_of


def test_weights_by_round_with_alice_in_the_middle(found):
    run = found["main", "weight_erosion"]  # serves client 1
    drawn = waffle.weights([found["main", "local"], run])
    upper, lower = drawn.figure.axes[:2]
    weights = run.records["weight"].astype(float)
    order = [3, 0, 1, 2]
    (shown,) = meshes(drawn.figure)
    np.testing.assert_allclose(shown, weights.mean(axis=0)[:, order].T, rtol=1e-6)
    assert [text.get_text() for text in upper.get_yticklabels()] == list(map(str, order))
    hers = [line for line in lower.get_lines() if line.get_linewidth() == 2]
    np.testing.assert_allclose(hers[0].get_ydata(), weights[:, :, 1].mean(axis=0), rtol=1e-6)
    assert len(lower.get_lines()) == CLIENTS
    assert len(drawn.numbers) == len(SEEDS) * ROUNDS * CLIENTS
    for _, _, seed, number, client, value in rows_of(drawn):
        assert value == weights[seed, number - 1, client]


def test_omega():
    """Values of the specification for R = 100 and a slope of 3.2."""
    drawn = waffle.omega(delta_omega="3.2", rounds=100)
    (line,) = drawn.figure.axes[0].get_lines()
    rounds = [1, 25, 50, 75, 90, 100]
    at = [list(line.get_xdata()).index(number) for number in rounds]
    wanted = [0.958, 0.832, 0.5, 0.168, 0.072, 0.039]
    np.testing.assert_allclose(line.get_ydata()[at], wanted, atol=6e-4)
    assert_input_error(r"--delta_omega must be numbers", waffle.omega, delta_omega="steep")


def test_chosen_neighbours():
    weights = np.array([[0.5, 0.3, 0.2, 0], [0.25] * 4, [0.4, 0.3, 0.3, 0], [0, 0, 0, 1.0]])
    chosen = matrices.chosen_neighbours(weights, 2)
    wanted = [[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 1]]  # ties are all chosen
    np.testing.assert_array_equal(chosen, np.array(wanted, bool))
    assert matrices.chosen_neighbours(weights, 9).sum() == (weights > 0).sum()


def test_neighbours_by_round(found):
    run = found["main", "feddwa"]
    drawn = feddwa.neighbours([run], top_k=2, rounds="first,3", seed=1)
    recorded = run.matrix("mixing")[1, :, 0]
    shown = meshes(drawn.figure)
    assert len(shown) == 2
    for picture, weights in zip(shown, recorded[[0, 2]], strict=True):
        for row, own in zip(picture, weights, strict=True):
            assert set(np.flatnonzero(row)) == set(np.argsort(-own)[:2])
    group = np.array([0, 0, 1, 1])
    inside = np.mean([group[row[4]] == group[row[5]] for row in rows_of(drawn) if row[3] == 3])
    assert f"{100 * inside:.0f} % in own group" in drawn.figure.axes[1].get_title()
    np.testing.assert_array_equal(matrices.group_borders(run), [1.5])
    assert {row[2] for row in rows_of(drawn)} == {1}
    assert_input_error(r"--seed must be one of 0, 1", feddwa.neighbours, [run], seed=2)
    with pytest.raises(InputError, match=r"rounds 1, 2, 3, not of '7': run with --matrix_rounds=7"):
        feddwa.neighbours([run], rounds="7")


def test_layerwise_weights(found, layered):
    run, alpha = layered
    drawn = pfedla.layerwise([run, found["main", "feddwa"]], client=2)
    left, right = drawn.figure.axes[:2]
    assert len(left.get_lines()) == 1  # FedDWA records no alpha
    np.testing.assert_allclose(
        left.get_lines()[0].get_ydata(), 100 * run.values()[:, :, 2].mean(axis=0), rtol=1e-5
    )
    own = alpha[:, -1, :, 2, 2].mean(axis=0)
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), own)
    assert [text.get_text() for text in right.get_xticklabels()] == ["fc_0", "head"]
    # One weight for the whole model is a flat line over the layers.
    whole = found["main", "feddwa"]
    drawn = pfedla.layerwise([whole], client=2, matrix="mixing", rounds="first")
    own = whole.matrix("mixing")[:, 0, 0, 2, 2].mean()
    np.testing.assert_allclose(drawn.figure.axes[1].get_lines()[0].get_ydata(), [own] * 2)
