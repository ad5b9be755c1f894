"""SPFL's references: cosines and softmax, the routine, limits, and why (7) cannot train."""

import numpy as np
import pytest

from tests.references import network, perfedavg_spfl, spfl
from tests.references.setting import Setting
from tests.references.similarity import cosine, cosine_matrix, softmax_rows
from tests.references.small import epochs, flat

BODY = ("hidden",)


# ------------------------------------------------------------------ cosines and softmax


def test_softmax_of_the_worked_example():
    row = softmax_rows([[1.0, 0.5, -0.2]])
    np.testing.assert_allclose(row, [[0.5242, 0.3179, 0.1579]], atol=5e-5)


def test_cosines():
    assert cosine(np.array([3.0, 4.0]), np.array([6.0, 8.0])) == pytest.approx(1.0, abs=1e-15)
    assert cosine(np.array([1.0, 0.0]), np.array([-2.0, 0.0])) == -1.0
    assert cosine(np.zeros(2), np.array([1.0, 0.0])) == 0.0
    assert cosine(np.zeros(2), np.zeros(2)) == 0.0


def test_cosines_read_kernels_alone_and_weigh_blocks():
    rng = np.random.default_rng(1)
    hidden = {"a": 3, "b": 2, "c": 4}
    moves = [network.random_parameters(rng, 4, hidden, 3) for _ in range(3)]
    other = [{k: {**v, "bias": v["bias"] + 1.0} for k, v in move.items()} for move in moves]
    parts = (0.5, 0.3, 0.2)
    total = spfl.weighted_cosines(moves, ("a", "b", "c"), parts)
    np.testing.assert_array_equal(total, spfl.weighted_cosines(other, ("a", "b", "c"), parts))
    for i in range(3):
        for j in range(3):
            expected = 0.0
            for part, layer in zip(parts, hidden, strict=True):
                a, b = (moves[k][layer]["kernel"].ravel() for k in (i, j))
                expected += part * (a @ b) / np.sqrt((a @ a) * (b @ b))
            np.testing.assert_allclose(total[i, j], expected, rtol=1e-12)
    np.testing.assert_allclose(np.diagonal(total), 1.0, rtol=1e-14)
    joined = cosine_matrix(moves, [("a", "kernel"), ("b", "kernel")])
    grouped = spfl.weighted_cosines(moves, (("a", "b"),), (1.0,))
    np.testing.assert_array_equal(grouped, joined)


def test_block_weights():
    assert spfl.block_weights(3, "auto", spfl.BODY_WEIGHTS) == [0.5, 0.3, 0.2]
    assert spfl.block_weights(4, "auto", spfl.ALL_WEIGHTS) == [0.4, 0.2, 0.2, 0.2]
    assert spfl.block_weights(2, "auto", spfl.BODY_WEIGHTS) == [0.5, 0.5]
    assert spfl.block_weights(1, "auto", spfl.BODY_WEIGHTS) == [1.0]
    assert spfl.block_weights(2, (0.9, 0.1), spfl.BODY_WEIGHTS) == [0.9, 0.1]


# ------------------------------------------------------------------ equation (7)


def test_the_literal_equation_cannot_train():
    """With alpha 0.01 and |D_j| / |D| = 1/10 a round moves a thousandth of what FedAvg does."""
    rng = np.random.default_rng(3)
    count, size = 10, 8
    samples = [np.arange(size * i, size * (i + 1)) for i in range(count)]
    y = rng.integers(0, 4, count * size)
    common = Setting(
        initial=network.random_parameters(rng, 5, 6, 4),
        clients=[{}] * count,
        rounds=1,
        x=rng.normal(size=(count * size, 5)) + np.eye(5)[y],
        y=y,
        sizes=[size] * count,
        cohorts=[list(range(count))],
        batches=epochs(rng, samples, 1),
        learning_rate=[0.1],
    )
    averaged = perfedavg_spfl.run(common)[0]["global"]
    extras = {"routine_batches": epochs(rng, samples, 1), "body": BODY}
    literal = spfl.run_paper(common, **extras, server_rate=0.01, data_shares=[size] * count)
    whole = spfl.run_paper(common, **extras)
    origin = flat(common.initial)
    distance = np.linalg.norm(flat(averaged) - origin)
    for i in range(count):
        moved = np.linalg.norm(flat(literal[0]["personalized"][i]) - origin)
        assert 1 / 1300 < moved / distance < 1 / 700
        ratio = np.linalg.norm(flat(whole[0]["personalized"][i]) - origin) / moved
        np.testing.assert_allclose(ratio, 1000, rtol=1e-6)
