"""Numbers of a partition against ones worked out by hand."""

import json
import time

import numpy as np
import pytest

from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.statistics import partition_statistics

LABELS = np.array([0, 1, 2, 0, 1, 2, 0, 0], np.int32)


def test_numbers_by_hand():
    p = Partition.from_lists([[0, 1], [3, 6], [4, 2, 5]], [[7], [], []])
    facts = partition_statistics(p, LABELS, 3)
    # Shares of the classes: (1/2, 1/2, 0), (1, 0, 0), (0, 1/3, 2/3).
    entropy = np.log(3) - 2 / 3 * np.log(2)
    assert facts["classes_per_client"] == {"min": 1, "mean": pytest.approx(5 / 3), "max": 2}
    assert facts["effective_classes"]["min"] == pytest.approx(1)
    assert facts["effective_classes"]["max"] == pytest.approx(2)
    assert facts["effective_classes"]["mean"] == pytest.approx((3 + np.exp(entropy)) / 3)
    distances = [1 / 2, 2 / 3, 1]
    assert facts["total_variation"]["mean"] == pytest.approx(np.mean(distances))
    assert facts["total_variation"]["max"] == pytest.approx(1)
    assert facts["client_sizes"] == {
        "train": [2, 2, 3], "test": [1, 0, 0], "validation": [0, 0, 0]
    }  # fmt: skip
    assert facts["label_disagreement"] is None
    assert (facts["unused_samples"], facts["overlapping_samples"]) == (0, 0)
    assert facts["hash"] == p.hash()
    assert json.loads(json.dumps(facts)) == facts


def test_label_disagreement():
    p = Partition.from_lists(
        [[0], [1], [2]], [[], [], []], label_map=np.array([[0, 1, 2], [1, 0, 2], [1, 2, 0]])
    )
    # Pairs differ in 2, 3 and 2 of 3 classes.
    assert partition_statistics(p, LABELS, 3)["label_disagreement"] == pytest.approx(7 / 9)


def test_empty_and_single_clients():
    p = Partition.from_lists([[0, 1], []], [[], []])
    facts = partition_statistics(p, LABELS, 3)
    assert facts["total_variation"] == {"mean": None, "max": None}
    assert facts["classes_per_client"]["mean"] == 2
    facts = partition_statistics(p, LABELS, 3, "test")
    assert facts["effective_classes"] == {"min": None, "mean": None, "max": None}
    json.dumps(facts, allow_nan=False)


@pytest.mark.parametrize(
    ("clients", "classes", "alpha"), [(40, 3, 5), (40, 30, 0.05), (2, 4, 1), (100, 6, 100)]
)
def test_pairs_against_all_pairs_one_by_one(clients, classes, alpha):
    rng = np.random.default_rng(clients)
    shares = rng.dirichlet([alpha] * classes, clients)
    labels = np.concatenate([rng.choice(classes, 12, p=row) for row in shares])
    label_map = np.array([rng.permutation(classes) for _ in range(clients)])
    p = Partition.from_lists(
        np.arange(clients * 12).reshape(clients, 12), [[]] * clients, label_map=label_map
    )
    counts = p.class_counts(labels, classes) / 12
    pairs = [(i, j) for i in range(clients) for j in range(i)]
    apart = [np.abs(counts[i] - counts[j]).sum() / 2 for i, j in pairs]
    facts = partition_statistics(p, labels, classes)
    assert facts["total_variation"] == pytest.approx({"mean": np.mean(apart), "max": max(apart)})
    differ = [np.mean(label_map[i] != label_map[j]) for i, j in pairs]
    assert facts["label_disagreement"] == pytest.approx(np.mean(differ))


def test_ten_thousand_clients_alike_in_two_groups():
    p = Partition.from_lists(np.arange(40_000).reshape(10_000, 4), [[]] * 10_000)
    start = time.process_time()
    # Shares (1/4, 3/4) and (3/4, 1/4): half of all pairs lie half apart.
    facts = partition_statistics(p, np.tile([0, 1, 1, 1, 0, 0, 0, 1], 5000), 2)
    assert time.process_time() - start < 2
    assert facts["total_variation"]["max"] == pytest.approx(0.5)
    assert facts["total_variation"]["mean"] == pytest.approx(0.25 * 10_000 / 9_999)
