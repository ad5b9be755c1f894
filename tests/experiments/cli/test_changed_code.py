"""A run whose code changes: refused, and never silently mixed."""

import json
from types import SimpleNamespace

import pytest

import fedjax_pfl as pfl
from experiments.cli import algorithm_folders, provenance, run_folder
from experiments.figures.selection import mixed_code
from tests.experiments.small_runs import SMALL, run_in

WORDS = (*SMALL, "--num_clients=3", "--num_seeds=1", "--checkpoint_seconds=0")


@pytest.mark.costly
def test_record_of_another_jax_goes_on_with_a_warning(tmp_path, capsys):
    folder = tmp_path / "out"
    assert run_in(folder, *WORDS, "--algorithms=local") == 0
    path = tmp_path / "out/run.json"
    record = json.loads(path.read_text())
    assert record[provenance.MADE_WITH] == [provenance.versions()]
    record[provenance.MADE_WITH][0]["jax"] = "0.0.1"
    path.write_text(json.dumps(record | {run_folder.DIGEST: run_folder.digest_of(record)}))
    capsys.readouterr()
    assert run_in(folder, *WORDS, "--algorithms=local,fedavg") == 0
    text = capsys.readouterr().err
    assert "warning: " in text and "jax was '0.0.1' and is " in text
    states = json.loads(path.read_text())[provenance.MADE_WITH]
    assert [one["jax"] for one in states] == ["0.0.1", provenance.versions()["jax"]]
    config = json.loads((tmp_path / "out/fedavg/config.json").read_text())
    assert provenance.versions().items() <= config["versions"].items()
    assert run_in(folder, *WORDS, "--algorithms=local,fedavg", "--num_seeds=2") == 0
    assert "warning" not in capsys.readouterr().err
    assert algorithm_folders.BLOCKS in json.loads(path.read_text())


def test_the_digest_of_the_package_is_that_of_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "FOLDERS", (tmp_path,))
    (tmp_path / "a.py").write_text("x = 1")
    result = [provenance.package.__wrapped__()]
    (tmp_path / "a.py").write_text("x = 2")
    result.append(provenance.package.__wrapped__())
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    result.append(provenance.package.__wrapped__())
    (tmp_path / "note.txt").write_text("no code")
    assert provenance.package.__wrapped__() == result[-1]
    assert len(set(result)) == 3


def test_pooled_runs_of_other_code_are_noted():
    now = provenance.versions()
    runs = [
        SimpleNamespace(folder=name, config={"versions": now | {"jaxlib": version}})
        for name, version in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    assert mixed_code([runs[:2], runs[2:]]) == []
    (note,) = mixed_code([runs])
    assert note.endswith("of this package's code: c.")
    assert pfl.__version__ == now["fedjax_pfl"]
