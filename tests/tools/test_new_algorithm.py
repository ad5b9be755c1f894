"""The skeleton of a new algorithm, laid down in a copy of the tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import new_algorithm

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("fedjax_pfl", "tests", "tools", "experiments", "docs/algorithms", "docs/comparison.md",
          "docs/models.md", "docs/api", "mkdocs.yml", "README.md", "pyproject.toml")  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return tmp_path


def run(copy, *words):
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=copy, capture_output=True, text=True, check=False
    )


@pytest.mark.costly
def test_skeleton_equals_its_reference(copy):
    done = run(copy, "tools.new_algorithm", "fedexample", "Federated Examples")
    assert done.returncode == 0, done.stderr
    assert "make test-algorithm NAME=fedexample" in done.stdout
    page = (copy / "docs/comparison.md").read_text()
    assert f"of {page.split('| Personalized algorithms | ')[1].split()[2]} |" in page
    names = ("fedexample", "refusals", "published_defaults")
    files = [f"tests/algorithms/test_{name}.py" for name in names]
    tested = run(copy, "pytest", "-p", "no:cacheprovider", "-q", "-k", "fedexample", *files)
    assert tested.returncode == 0, tested.stdout[-3000:]
    again = run(copy, "tools.new_algorithm", "fedexample", "Federated Examples")
    assert again.returncode == 2 and "exists: NAME must be new" in again.stderr


def test_create_files_finds_the_place_of_every_line(tmp_path):
    files = {file for file, _, _ in new_algorithm.LINES}
    for name in (*files, *new_algorithm.FILES.values()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(ROOT / file, tmp_path / file)
    for path in new_algorithm.create_files(tmp_path, "fedexample", "Federated Examples"):
        assert "@" not in path.read_text().replace("@core.algorithm", "")
    for file in files:
        added = (tmp_path / file).read_text().lower().count("fedexample")
        assert added > (ROOT / file).read_text().count("fedexample"), file


@pytest.mark.parametrize("name", ["FedX", "fed-x", ""])
def test_names_that_cannot_be(tmp_path, name):
    with pytest.raises(ValueError, match="NAME must be lower case"):
        new_algorithm.create_files(tmp_path, name, "Title")
