"""Files of a run."""

import json

from experiments.outputs import run_files


def test_infinite_numbers_are_told_from_missing_ones(tmp_path):
    run_files.write_json(tmp_path / "a.json", {"a": [float("inf"), -float("inf"), float("nan"), 1]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": ["inf", "-inf", None, 1]}
