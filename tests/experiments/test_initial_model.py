"""Runs that begin with a file's values, and with frozen layers, by flags."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.cli import build, flags
from tests.experiments.small_runs import TINY, assert_refused, read_json, run_in

WORDS = (*TINY, "--model=mlp", "--model_option=hidden=6", "--algorithms=fedavg")


def write(path, number=0.5):
    np.savez(path, **{"fc_0.kernel": np.full((64, 6), number, np.float32), "other": np.zeros(2)})
    return f"--init_from={path}", "--init_partial"


@pytest.mark.costly
def test_run_with_init_from_and_freeze(tmp_path, capsys):
    folder, file = tmp_path / "out", tmp_path / "first.npz"
    words = (*WORDS, "--save_models", *write(file), "--freeze=fc_0")
    assert run_in(folder, *words) == 0
    text = capsys.readouterr().out
    assert "model      mlp: 70 parameters, and 390 frozen ones, kept once" in text
    assert f"initial    {file}: 1 of 4 leaves given (384 of 460 numbers); drawn, as none" in text
    assert "given, but not in the network: other" in text
    models = pfl.load_models(folder / "fedavg" / "models.npz")
    assert list(models["global"]["params"]) == ["head"]
    assert models["backbone"]["params"]["fc_0"]["kernel"].shape == (2, 64, 6)
    assert (models["backbone"]["params"]["fc_0"]["kernel"] == 0.5).all()
    summary = read_json(folder / "fedavg" / "config.json")["model"]
    assert summary["parameters"] == 70 and summary["frozen"] == 390
    assert summary["shared"] == {"head": 70}
    assert run_in(folder, *words) == 0  # finished
    write(file, 0.25)
    capsys.readouterr()
    assert_refused(run_in(folder, *words), "content of the initial model was", capsys)


def test_adapters_by_flags(tmp_path):
    args = flags.parse(["run", *WORDS, *write(tmp_path / "first.npz"), "--lora_rank=2"])
    one = build.prepare(build.load_inputs(args)).federation
    assert one.plan.num_parameters == 2 * (64 + 6) + 70 and one.num_frozen == 390
    assert "given (384 of 460 numbers)" in str(one.initial_match)
