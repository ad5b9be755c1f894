"""`experiments.partition` as a user calls it, in-process."""

import json

import numpy as np
import pytest

import fedjax_pfl as pfl
from experiments.cli.data_flags import partition_summary
from experiments.partition import main
from tests.experiments.small_runs import assert_refused


def call(*words):
    return main(["partition", *words])


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.costly
def test_one_partition(tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    words = ("--partition=waffle", "--num_clients=10", "--partition_option=distribution=B*")
    assert call(*words, "--alice=2", f"--output_dir={out}") == 0
    files = {"partition.npz", "partition.json", "partition.png", "sizes.png", "label_map.png"}
    assert names(out) == files
    facts = json.loads((out / "partition.json").read_text())
    assert (facts["rule"], facts["dataset"], facts["num_clients"]) == ("waffle", "digits", 10)
    assert facts["options"]["alice"] == 2
    assert facts["label_disagreement"] > 0.5
    loaded = pfl.Partition.load(out / "partition.npz")
    assert loaded.hash() == facts["hash"]
    assert facts["hash"][:12] in capsys.readouterr().out
    again = tmp_path / "again"
    assert call(f"--partition_file={out / 'partition.npz'}", f"--output_dir={again}") == 0
    assert json.loads((again / "partition.json").read_text())["hash"] == facts["hash"]


def test_official_test_samples_that_are_dealt_anew_are_said():
    x, y = np.zeros((60, 2), np.float32), np.arange(60) % 2
    for given, told in (((x, y, x, y), 1), ((x, y), 0)):
        data = pfl.dataset_from_arrays("mine", *given)
        for rule, pooled in (("dirichlet", told), ("iid", 0)):
            partition = pfl.make_partition(rule, data, num_clients=2, seed=0)
            text = partition_summary(partition, data)
            assert text.count("\ntest_split=pooled: the official test samples are") == pooled


@pytest.mark.costly
def test_alphas_in_one_row(tmp_path):
    out = tmp_path / "out"
    words = ("--partition=dirichlet_per_client", "--num_clients=5", "--alphas=0.1,10")
    assert call(*words, f"--output_dir={out}") == 0
    made = {f"{stem}-alpha={a}" for stem in ("partition", "sizes") for a in ("0.1", "10")}
    expected = {f"{name}.png" for name in made} | {"alphas.png"}
    expected |= {f"partition-alpha={a}.{end}" for a in ("0.1", "10") for end in ("npz", "json")}
    assert names(out) == expected
    files = (out / f"partition-alpha={a}.json" for a in ("0.1", "10"))
    narrow, wide = (json.loads(file.read_text()) for file in files)
    assert narrow["effective_classes"]["mean"] < wide["effective_classes"]["mean"]


@pytest.mark.costly
def test_imported_split(tmp_path):
    """It takes the place of a preset's, and has validation samples and turns."""
    split, out = tmp_path / "split.json", tmp_path / "out"
    split.write_text(json.dumps({"0": [*range(20)], "1": [*range(20, 30)]}))
    words = ("--preset=digits_groups", f"--import_split=flower:{split}", "--feature_shift=rotate")
    options = ("--partition_option=test_fraction=0.5", "--validation_fraction=0.2")
    assert call(*words, *options, f"--output_dir={out}") == 0
    facts = json.loads((out / "partition.json").read_text())
    assert facts["num_clients"] == 2 and facts["client_sizes"]["train"] == [8, 4]
    made = pfl.read_partition(out / "partition.npz", pfl.load_dataset("digits"))
    assert made.sizes("validation").tolist() == [2, 1] and made.turns is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data_option=size=3"], "Data set 'digits' takes no options, got 'size'"),
        (["--dataset=parquet:x", "--data_option=imag=3"], "Did you mean 'image_size'"),
        (["--partition=iid", "--alpha=1"], "--alpha is not an option of partition rule 'iid'"),
        (["--alpha=x"], "alpha must be a number, got 'x'"),
        (["--alpha=1", "--alphas=1,2"], "Give --alpha or --alphas, not both"),
        (
            ["--alpha=1", "--partition_option=alpha=2"],
            "The option 'alpha' of the partition rule is given twice",
        ),
        (["--partition_option=alpha"], "--partition_option must read NAME=VALUE, got 'alpha'"),
        (["--alphas="], "--alphas must name at least one number"),
        (["--alphas=0.1,0.1000000001"], "--alphas names alpha=0.1 twice"),
        (
            ["--partition_file=x.npz", "--partition=iid"],
            "Give one of --partition and --partition_f",
        ),
        (["--partition_file=x.npz", "--num_clients=3"], "--num_clients is for rules"),
        (["--partition_file=x.npz"], "No file x.npz"),
        (["--import_split=pfl:x"], "Did you mean 'pfllib'"),
        (["--import_split=pfllib"], "--import_split must be SOURCE:PATH, got 'pfllib'"),
        (["--partition_file=x.npz", "--partition_seed=3"], "--partition_seed is for rules"),
        (
            ["--partition_file=x.npz", "--partition_seed=3", "--validation_fraction=0.2"],
            "No file x.npz",
        ),
        (["--import_split=pfllib:x"], "No file x/config.json"),
        (["--dataset=digit"], "Did you mean 'digits'"),
    ],
)
def test_partition_refused(words, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert call(*words, f"--output_dir={out}") == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_never_overwrites(tmp_path, capsys):
    assert_refused(call(f"--output_dir={tmp_path}"), "nothing is ever overwritten", capsys)
    assert names(tmp_path) == set()


def test_list(capsys):
    assert call("--list") == 0
    shown = capsys.readouterr().out
    assert "pfedla_noniid1" in shown
    assert "pfllib" in shown
    assert "test_split=train, test_fraction=0.2" in shown
