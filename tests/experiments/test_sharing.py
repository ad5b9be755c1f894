"""Algorithms that share different things, in one command and one table."""

import flax.linen as nn
import pytest

from fedjax_pfl.models.layers import Dense
from fedjax_pfl.models.model_registry import MODELS, register_model
from fedjax_pfl.models.normalization import BatchNorm
from tests.experiments.small_runs import SMALL, read_json, read_rows, run_in

NAMES = ("fedavg", "fedper", "lg_fedavg", "fedbn")
WORDS = (*SMALL, "--num_clients=5", "--num_seeds=1", "--local_steps=2", "--new_clients=1",
         "--new_client_steps=2", "--nosave_models", "--model=small_normed")  # fmt: skip


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


@pytest.mark.costly
def test_table_of_algorithms_that_share_different_layers(tmp_path, capsys):
    folder = tmp_path / "out"
    words = (f"--algorithms={','.join(NAMES)}",)
    assert run_in(folder, *WORDS, *words) == 0
    configs = {name: read_json(folder / name / "config.json") for name in NAMES}
    shared = {name: config["model"]["shared"] for name, config in configs.items()}
    fc, bn, head = 64 * 6 + 6, 4 * 6, 6 * 10 + 10
    assert shared == {
        "fedavg": {"fc": fc, "bn": bn, "head": head},
        "fedper": {"fc": fc, "bn": bn, "head": 0},
        "lg_fedavg": {"fc": 0, "bn": 0, "head": head},
        "fedbn": {"fc": fc, "bn": 0, "head": head},
    }
    for name in NAMES:
        summary = read_json(folder / name / "summary.json")
        size = 4e-6 * sum(shared[name].values())
        assert summary["traffic_mb_per_client_round"] == pytest.approx({"up": size, "down": size})
        assert [row["local_steps"] for row in read_rows(folder / name / "new_clients.csv")] == ["2"]
        assert f"\n| {name} |" in (folder / "new_clients.md").read_text()
    capsys.readouterr()
    assert run_in(folder, *WORDS, *words) == 0  # it is finished: nothing is another run's
    assert "This run is finished" in capsys.readouterr().out


@pytest.mark.costly
def test_batch_norm_where_there_is_none(tmp_path, capsys):
    assert run_in(tmp_path / "out", *WORDS, "--algorithms=fedavg,fedbn", "--model=mlp") == 2
    assert "this network has none: it would be fedavg" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
