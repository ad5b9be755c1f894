"""The comparison of two revisions, on folders as its driver writes them."""

import subprocess

import numpy as np
import pytest

from tools import compare_revisions


def folder(path, **cases):
    path.mkdir()
    for name, arrays in cases.items():
        np.savez(path / f"{name}.npz", **arrays)
    return path


def leaves(state, metrics=(1.0, np.nan), model=2.0):
    return {
        "metrics/0": np.array(metrics, np.float32),
        "states/0": np.arange(3.0),
        "states/1": np.array(state),
        "models/0": np.full(2, model),
    }


def test_leaves_are_compared_part_by_part(tmp_path):
    one = folder(tmp_path / "old", a=leaves(4.0), b=leaves(4.0), c=leaves(4.0), d=leaves(4.0))
    moved = {**leaves(4.0), "states/0": np.array(4.0), "states/1": np.arange(3.0)}  # another order
    nan = leaves(4.0, metrics=(1.0, 1.0))
    other = folder(tmp_path / "new", a=moved, b=leaves(4.004), c=nan)
    (tmp_path / "old" / "e.error").write_text("ValueError: no")
    (tmp_path / "new" / "e.error").write_text("ValueError: no")
    result = compare_revisions.compared(one, other)
    assert result["a"] == {"metrics": 0, "states": 0, "models": 0}
    assert set(result["e"].values()) == {np.inf}, "a case that fails in both revisions"
    assert result["b"]["states"] == pytest.approx(1e-3) and result["b"]["models"] == 0
    assert result["c"]["metrics"] == np.inf and result["c"]["states"] == 0
    assert set(result["d"].values()) == {np.inf}, "a case that one revision lacks"


@pytest.mark.costly
def test_a_revision_equals_itself(tmp_path):
    archive = subprocess.run(
        ["git", "-C", str(compare_revisions.ROOT), "archive", "HEAD"],
        capture_output=True, check=True,
    )  # fmt: skip
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive.stdout, check=True)
    words = ["HEAD", f"--tree={tmp_path}", "--algorithms=fedavg,ditto"]
    assert compare_revisions.main(words) == 0
