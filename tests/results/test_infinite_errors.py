"""A client whose error overflows counts in every number of a result, and no other round does."""

from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.outputs import run_files
from fedjax_pfl.engine.metrics_buffer import MetricsBuffer
from fedjax_pfl.results.notes import scored_clients

pytestmark = pytest.mark.costly

NAME = "personalized/test/mse"


@pytest.fixture(scope="module")
def result():
    """Three clients, three rounds; client 0 overflows in the last one, client 2 in all."""
    x = np.linspace(-1, 1, 60, dtype=np.float32).reshape(30, 2)
    dataset = pfl.dataset_from_arrays("mine", x, x[:, 0] * 2, task="regression")
    partition = pfl.Partition.from_lists(*np.arange(30).reshape(2, 3, 5).tolist())
    federation = pfl.federate(dataset, partition, "softmax", participation=0.7)
    made = pfl.simulate(
        pfl.make_algorithm("local", {"participants": "sampled"}), federation, 3, seeds=[0]
    )
    values = made.scores[NAME].copy()
    values[..., 2] = np.inf
    values[:, :, -1, 0] = np.inf
    return replace(made, scores=made.scores | {NAME: values})


def test_the_last_round_is_the_last_one(result):
    summary = result.summary()
    assert summary["mse"]["final_mean"] == np.inf and summary["rounds"] == 3
    assert summary["scored_clients"] == scored_clients(result) == [0, 1, 2]
    alone = replace(result, scores={NAME: np.where(np.isinf(result.scores[NAME]), np.nan, 1.0)})
    assert alone.summary()["scored_clients"] == [1]  # client 0 has no score after the last round


def test_participants(result):
    there = result.clients["participated"][0, 0].astype(bool)
    found = result.participant_mean()[0, 0]
    for t in range(3):
        assert found[t] == pytest.approx(result.values()[0, 0, t][there[t]].mean())


def test_lines_of_metrics(result):
    rows = {(t, name): value for _, t, name, value in run_files.metric_rows(result)}
    for t in (1, 2, 3):
        assert rows[t, NAME] == rows[t, f"{NAME}_worst_decile"] == np.inf
        assert rows[t, f"{NAME}_clients"] == 3


def test_curves_while_it_runs():
    collector = MetricsBuffer(1, 1, ()).add(
        1, {"scores": {NAME: np.array([[[1.0, np.inf, np.nan]]])}}, {}, 1.0
    )
    assert collector.curve(NAME)[1] == np.inf and collector.latest(NAME) == np.inf
