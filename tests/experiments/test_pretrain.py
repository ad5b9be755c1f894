"""`experiments.pretrain`, and runs that begin with its file."""

import json
import struct

import numpy as np
import pytest
import safetensors.numpy

import fedjax_pfl as pfl
from experiments import pretrain
from experiments.cli import build, flags
from fedjax_pfl.models.base_file import SEEN
from tests.experiments.small_runs import assert_input_error, assert_refused

DATA = ("--dataset=digits", "--model=mlp", "--model_option=hidden=6")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "base.safetensors"
    # A run's own flags are ignored.
    clients = ("--lora_rank=2", "--num_clients=7", "--rounds=99", "--local_steps=1")
    words = (*DATA, *clients, "--public=classes:0-4", "--epochs=2", f"--output={path}")
    assert pretrain.main(["pretrain", *words]) == 0
    return path


def prepared(*words):
    return build.prepare(build.load_inputs(flags.parse(["run", *DATA, *words])))


def test_file_of_a_base_model(finished):
    arrays = safetensors.numpy.load_file(finished)
    assert set(arrays) == {"params/fc_0/kernel", "params/fc_0/bias", SEEN}
    content = finished.read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    facts = json.loads(header["__metadata__"]["fedjax_pfl"])
    assert facts["origin"] == "trained on 676 samples of digits (classes:0-4)"
    assert facts["classes"] == ["0", "1", "2", "3", "4"] and facts["epochs"] == 2
    assert len(arrays[SEEN]) == facts["samples"] == 676
    assert "%" in facts["score"]


def test_clients_hold_other_samples(finished):
    made = prepared("--public=classes:0-4", f"--init_from={finished}", "--lora_rank=2")
    assert made.dataset.num_classes == 5 and made.dataset.class_names == tuple("56789")
    federation = made.federation
    assert federation.notes == ()
    given = safetensors.numpy.load_file(finished)
    values = federation.initial_values
    np.testing.assert_array_equal(values["params/fc_0/kernel"], given["params/fc_0/kernel"])
    match = federation.initial_match
    assert match.unused == () and match.unclear == ()
    assert str(match).endswith("; trained on 676 samples of digits (classes:0-4)")


def test_clients_that_hold_seen_samples_are_noted(finished):
    made = prepared(f"--init_from={finished}", "--validation_fraction=0.1")
    known = np.isin(made.dataset.train_y, range(5))  # of which the base saw three quarters
    held = {name: made.partition.split(name).idx for name in ("train", "test", "validation")}
    (note,) = made.federation.notes
    counts = [int(word.replace(",", "")) for word in note.split() if word[0].isdigit()]
    assert sum(counts[::2]) == 676
    assert counts[1::2] == [len(idx) for idx in held.values()]
    assert all(
        count <= known[idx].sum() for count, idx in zip(counts[::2], held.values(), strict=True)
    )
    assert note.startswith("the initial model was trained on") and note.endswith("of the clients")


@pytest.mark.costly
def test_the_head_is_written_on_request(tmp_path):
    path = tmp_path / "whole.safetensors"
    words = (*DATA, "--public=share:0.5", "--epochs=1", "--with_head", f"--output={path}")
    assert pretrain.main(["pretrain", *words]) == 0
    assert "params/head/kernel" in safetensors.numpy.load_file(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--output must name a file, such as base.safetensors"),
        (("--output=base.npz",), "--output must end in .safetensors"),
        (("--output=none/base.safetensors",), "no folder none to write to"),
        (("--output=b.safetensors", "--public=half"), "public must read classes:0-4"),
        (("--output=b.safetensors", "--epochs=0"), "--epochs must be a whole number of at least 1"),
    ],
)
def test_pretrain_refused(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert_refused(pretrain.main(["pretrain", *DATA, *words]), message, capsys)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_kept(finished, capsys):
    before = finished.read_bytes()
    assert pretrain.main(["pretrain", *DATA, f"--output={finished}"]) == 2
    assert "exists already" in capsys.readouterr().err and finished.read_bytes() == before


def test_damaged_facts_of_a_base_model(finished, tmp_path):
    path = tmp_path / "bad.safetensors"
    arrays = {"fc_0/kernel": np.ones((64, 6), np.float32), SEEN: np.ones(3, np.float32)}
    path.write_bytes(safetensors.numpy.save(arrays, {"fedjax_pfl": "{}"}))
    assert_input_error("has invalid metadata of fedjax_pfl", prepared, f"--init_from={path}")
    path.write_bytes(safetensors.numpy.save(arrays, {"fedjax_pfl": "{"}))
    with pytest.raises(pfl.InputError, match="can't be read as a safetensors file with facts"):
        prepared(f"--init_from={path}")
