"""Algorithms that share different things, in one command and one table."""

import json

import flax.linen as nn
import numpy as np
import pytest

from experiments.run import main
from fedjax_pfl.models.layers import Dense
from fedjax_pfl.models.model_registry import MODELS, register_model
from fedjax_pfl.models.normalization import BatchNorm
from tests.experiments.small_runs import read_rows

NAMES = ("fedavg", "fedper", "lg_fedavg", "fedbn")
WORDS = ("--dataset=digits", "--num_clients=5", "--rounds=2", "--num_seeds=1", "--local_steps=2",
         "--new_clients=1", "--new_client_steps=2", "--save_models=false",
         "--compilation_cache=")  # fmt: skip


class Small(nn.Module):
    num_classes: int

    def setup(self):
        self.fc, self.bn, self.head = Dense(6), BatchNorm(), Dense(self.num_classes)

    def __call__(self, x, train: bool = False, valid=None):
        x = self.fc(x.reshape(x.shape[0], -1))
        return self.head(nn.relu(self.bn(x, train, valid)))


@pytest.fixture(scope="module", autouse=True)
def small_network():
    @register_model("small_normed")
    def make(input_shape, num_classes, initializer):
        """Linear, batch normalization, ReLU, linear."""
        return Small(num_classes)

    yield
    del MODELS["small_normed"]


def call(folder, *words):
    return main(["run", *WORDS, "--model=small_normed", f"--output_dir={folder}", *words])


def read(folder, name):
    return json.loads((folder / name / "config.json").read_text())


@pytest.mark.thorough
def test_one_table_holds_what_shares_different_things(tmp_path, capsys):
    folder = tmp_path / "out"
    words = (f"--algorithms={','.join(NAMES)}",)
    assert call(folder, *words) == 0
    shared = {name: read(folder, name)["model"]["shared"] for name in NAMES}
    fc, bn, head = 64 * 6 + 6, 4 * 6, 6 * 10 + 10
    assert shared == {
        "fedavg": {"fc": fc, "bn": bn, "head": head},
        "fedper": {"fc": fc, "bn": bn, "head": 0},
        "lg_fedavg": {"fc": 0, "bn": 0, "head": head},
        "fedbn": {"fc": fc, "bn": 0, "head": head},
    }
    for name in NAMES:
        summary = json.loads((folder / name / "summary.json").read_text())
        size = 4e-6 * sum(shared[name].values())
        assert summary["traffic_mb_per_client_round"] == pytest.approx({"up": size, "down": size})
        assert [row["local_steps"] for row in read_rows(folder / name / "new_clients.csv")] == ["2"]
        assert f"\n| {name} |" in (folder / "new_clients.md").read_text()
    capsys.readouterr()
    assert call(folder, *words) == 0  # it is finished: nothing is another run's
    assert "This run is finished" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_flag_is_for_all_of_them_and_the_table_says_where_it_wins(tmp_path, capsys):
    folder = tmp_path / "out"
    words = ("--algorithms=fedavg,fedper", "--share=all")
    assert call(folder, *words) == 0
    assert "fedper: shares all layers, as set by share." in capsys.readouterr().out
    first, second = (np.load(folder / name / "clients.npz") for name in ("fedavg", "fedper"))
    for name in first:
        if "test" in name:
            np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    assert call(folder, *words, "--share=body") == 2
    assert "--share was 'all' and is 'body'" in capsys.readouterr().err


def test_batch_norm_where_there_is_none(tmp_path, capsys):
    assert call(tmp_path / "out", "--algorithms=fedavg,fedbn", "--model=mlp") == 2
    assert "this network has none: it would be fedavg" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
