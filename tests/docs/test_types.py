"""Code of a user's own is typed through `py.typed`: a checker takes what is right, and no more."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import pages

EXAMPLE = pages.ROOT / "experiments/examples/kept_average.py"
USE = """
import fedjax_pfl as pfl


@core.algorithm("deeper")
class Deeper(KeptAverage):
    layers: int = core.static(default=1)


def accuracy(seeds: int) -> float:
    dataset = pfl.load_dataset("digits")
    partition = pfl.make_partition("dirichlet", dataset, num_clients=5, seed=0, alpha=0.5)
    federation = pfl.federate(dataset, partition, "softmax", local_epochs=2, participation=0.6)
    result = pfl.simulate(KeptAverage(keep=0.1), federation, 3, seeds=range(seeds))
    swept = pfl.simulate(Deeper(0.1, layers=2), federation, 3, settings={"keep": [0.1, 0.2]})
    return float(result.curve()[:, 0, -1].mean() + swept.accuracy("global").mean())
"""
# What the checker is to see, and the rule that it names.
MISTAKES = {
    "KeptAverage(kep=0.1)": "reportCallIssue",
    'KeptAverage(keep="high")': "reportArgumentType",
    "State()": "reportCallIssue",
    "pfl.simulate(KeptAverage, None, 3)": "reportArgumentType",
    "KeptAverage().keep.mean()": "reportAttributeAccessIssue",
}


def checker():
    """The command, beside this Python or on the path."""
    beside = shutil.which("basedpyright", path=str(Path(sys.executable).parent))
    return beside or shutil.which("basedpyright")


@pytest.mark.costly
@pytest.mark.skipif(checker() is None, reason="basedpyright is not here: install the extra 'dev'")
def test_a_users_code_is_typed(tmp_path):
    sample = EXAMPLE.read_text(encoding="utf-8") + USE
    lines = sample.count("\n")
    (tmp_path / "mine.py").write_text(sample + "\n".join(MISTAKES) + "\n", encoding="utf-8")
    options = {"include": ["mine.py"], "extraPaths": [str(pages.ROOT)], "typeCheckingMode": "basic",
               "reportUnusedExpression": False}  # fmt: skip
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options), encoding="utf-8")
    done = subprocess.run(
        [checker(), "--outputjson", f"--project={tmp_path}", f"--pythonpath={sys.executable}"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    result = [
        (one["range"]["start"]["line"] - lines, one["rule"], one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
    ]
    assert not [one for one in result if one[0] < 0]
    seen = {line: rule for line, rule, _ in result}
    assert seen == dict(enumerate(MISTAKES.values())), result


def test_the_library_says_that_it_is_typed():
    assert (pages.ROOT / "fedjax_pfl" / "py.typed").exists()
