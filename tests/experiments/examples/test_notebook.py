"""The notebook is well formed, leaves the image's jax alone, and runs in its short form.

Its cells are plain Python, so they run here one after the other without a kernel; what a cell ends
with is asked for its picture, as a kernel would.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

import fedjax_pfl as pfl
from tests.docs import notebooks
from tests.docs.pages import ROOT

PATH = ROOT / "experiments/examples/colab_tpu.ipynb"
CODE = notebooks.code(PATH)


def run_cell(cell, names):
    return notebooks.run_cell(cell, CODE[cell], names)


@pytest.fixture
def image(tmp_path, monkeypatch):
    """The short form in a folder of its own, and an environment whose pip only notes its words."""
    monkeypatch.setenv("FEDJAX_PFL_SHORT", "1")
    monkeypatch.chdir(tmp_path)
    calls, versions = [], {}

    def run(words, check):
        assert check
        words = words[words.index("install") + 1 :]
        if "--constraint" in words:
            with open(words[words.index("--constraint") + 1], encoding="utf-8") as file:
                calls.append(file.read())
        calls.append(words)

    known = importlib.metadata.version

    def version(name):
        result = versions.get(name, known(name))
        if result is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return result

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.metadata, "version", version)
    names = {"__name__": "notebook"}
    run_cell("parameters", names)
    return SimpleNamespace(names=names, calls=calls, versions=versions)


def test_it_uses_public_names_alone():
    for text in CODE.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute):
                assert not node.attr.startswith("_") or node.attr == "__version__"
                if isinstance(node.value, ast.Name) and node.value.id == "pfl":
                    assert node.attr in pfl.__all__
            if isinstance(node, ast.ImportFrom) and node.module.startswith("fedjax_pfl"):
                public = ("fedjax_pfl", "fedjax_pfl.results", "fedjax_pfl.data.partitions")
                assert node.module in public  # pictures load slowly


def test_installing_what_is_lacking(image, capsys):
    image.versions |= {"optax": None, "flax": "0.1", "jax": "0.7.2"}
    image.names["SOURCE"] = "git+https://example.org/fedjax_pfl"
    run_cell("install", image.names)
    package, constraints, (quiet, _, _, *lacking) = image.calls
    assert package == [quiet, "--no-deps", "git+https://example.org/fedjax_pfl"]
    assert "jax==0.7.2\n" in constraints
    assert f"jaxlib=={importlib.metadata.version('jaxlib')}\n" in constraints
    assert sorted(lacking) == ["flax>=0.12", "optax>=0.2.6"]
    assert "Attention: jax>=0.10 is asked for" in capsys.readouterr().out


def test_installing_that_changes_jax_is_an_error(image, monkeypatch):
    image.versions["optax"] = None
    noted = subprocess.run

    def upgrades(words, check):
        noted(words, check)
        image.versions["jaxlib"] = "99.0"

    monkeypatch.setattr(subprocess, "run", upgrades)
    with pytest.raises(RuntimeError, match=r"changed jax from .*'jaxlib': '99\.0'"):
        run_cell("install", image.names)


@pytest.mark.parametrize("name", ["fedjax_pfl-0.5.0-py3-none-any.whl", "fedjax_pfl.zip"])
def test_installing_a_file(name, image, tmp_path, monkeypatch):
    """One that lies there; in Colab one that is asked for."""
    image.versions["fedjax_pfl"] = None
    colab, files = ModuleType("google.colab"), ModuleType("google.colab.files")

    files.upload = lambda: {name: (tmp_path / name).write_bytes(b"")}
    monkeypatch.setitem(sys.modules, "google", ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    monkeypatch.setitem(sys.modules, "google.colab.files", files)
    for found in (name, str(tmp_path / name)):
        run_cell("install", image.names)
        ((_, *words),) = image.calls
        assert words == ["--no-deps", found]
        image.calls.clear()


def test_installing_without_jax_or_package_is_an_error(image, monkeypatch):
    image.versions["fedjax_pfl"] = None
    with pytest.raises(RuntimeError, match="or say in SOURCE where the package is"):
        run_cell("install", image.names)
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: iter(()))
    with pytest.raises(RuntimeError, match="There is no jax here"):
        run_cell("install", image.names)


@pytest.mark.costly
def test_short_form_of_the_notebook(image, tmp_path, capsys):
    for cell in list(CODE)[1:]:
        shown = run_cell(cell, image.names)
        if shown is not None:
            assert shown._repr_png_().startswith(b"\x89PNG")
    assert image.calls == []  # nothing was installed
    text = capsys.readouterr().out
    assert re.search(r"[CGT]PU: \d+ x", text)
    assert "4 runs in one program" in text
    folder = tmp_path / "colab_results_1"
    pictures = {path.stem for path in folder.glob("*.png")}
    assert pictures == {"partition", "accuracy", "mixing", "sweep"}
    sweep = pfl.Result.load(folder / "sweep")
    assert sweep.curve().shape == (2, 2, 3)
    assert pfl.Result.load(folder / "fedavg").rounds == 3
    run_cell("keep", image.names)  # once more: beside it
    assert (tmp_path / "colab_results_2" / "sweep.png").exists()
