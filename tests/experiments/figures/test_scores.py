"""The mean over the clients that a round is about to train."""

from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.figures.scores import curve
from fedjax_pfl.utils.metric_names import ACCURACY as MEASURE

ACCURACY = np.array([[[0.5, 0.7, np.nan], [0.2, 0.4, 0.6], [0.1, 0.3, 0.9]]])  # [S, E, N]
TOOK_PART = np.array([[[1, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 1]]], bool)  # [S, T, N]
SIZES = np.array([1, 3, 4])


def a_run():
    return SimpleNamespace(
        records={"participated": TOOK_PART},
        result=SimpleNamespace(test_sizes=SIZES, eval_rounds=np.array([1, 3, 4])),
        values=lambda model, split: ACCURACY, measure=MEASURE,
    )  # fmt: skip


def test_clients_of_the_next_round_are_averaged():
    rows = np.arange(3)
    result = curve(a_run(), rows, "personalized", "test", "samples", "next_participants")
    # After round 1 clients 0 and 1 come, after 3 clients 0 and 2, after the last nobody.
    expected = [(0.5 + 3 * 0.7) / 4, (0.2 + 4 * 0.6) / 5, np.nan]
    np.testing.assert_allclose(result[0], 100 * np.array(expected))
    some = curve(a_run(), np.array([2]), "personalized", "test", over="next_participants")
    np.testing.assert_allclose(some[0], [np.nan, 60, np.nan])


def test_validation_scores_have_no_weights():
    """Those of the test samples are not theirs."""
    with pytest.raises(pfl.InputError, match="must be 'clients' for validation samples: a result"):
        curve(a_run(), np.arange(3), "personalized", "validation", "samples")


def test_an_unknown_set_of_clients_is_refused():
    with pytest.raises(pfl.InputError, match="next_participants"):
        curve(a_run(), np.arange(3), "personalized", "test", over="participants")
