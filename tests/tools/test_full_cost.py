"""Costs of tables at the papers' scale."""

import numpy as np
import pytest

from experiments.cli import data_flags, flags
from experiments.reproduction import datasets
from tools import full_cost


@pytest.mark.costly
def test_costs_at_full_scale():
    """Of plain training, by the steps of the paper's clients; seeds and rounds multiply."""
    words = ("--preset=pfedla/table1_fashion_mnist_10", "--model=softmax")
    result = full_cost.training(words)
    args = flags.parse(["run", *words])
    assert full_cost.training((*words, "--num_seeds=1")) == pytest.approx(result / args.num_seeds)
    assert full_cost.training((*words, "--rounds=60")) == pytest.approx(result / 10)
    # A sample's forward pass and its gradient are 2 x 7,840 multiply-adds; 70 % are for training.
    samples = 1e9 * result / (4 * 7840) / (args.num_seeds * args.rounds * args.local_epochs)
    assert 1 < samples / settings_held(words).sum() < 1.1
    assert full_cost.training(("--dataset=digits",)) is None
    dropping = flags.parse(["run", "--batch_size=10", "--drop_last"])
    assert full_cost.steps(dropping, np.array([9, 25])).tolist() == [0, 2]


def settings_held(words):
    """Training samples of each client of a preset, as docs/settings counts them."""
    args = flags.parse(["run", *words])
    return data_flags.make_partition(args, datasets.blank(args.dataset)).sizes()
