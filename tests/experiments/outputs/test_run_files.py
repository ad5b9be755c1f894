"""Files of a run."""

import json

from experiments.outputs import run_files


def test_infinite_numbers_are_told_from_missing_ones(tmp_path):
    run_files.write_json(tmp_path / "a.json", {"a": [float("inf"), -float("inf"), float("nan"), 1]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": ["inf", "-inf", None, 1]}


def test_folders_that_a_killed_process_did_not_replace(tmp_path):
    """The old one comes back where the new one is not there yet; else it goes."""
    for name in ("local", "fedavg"):
        (tmp_path / f"{run_files.REPLACED}{name}").mkdir()
        (tmp_path / f"{run_files.REPLACED}{name}" / "old").touch()
    (tmp_path / "fedavg").mkdir()
    run_files.restore(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedavg", "local"]
    assert (tmp_path / "local" / "old").exists() and not list((tmp_path / "fedavg").iterdir())
