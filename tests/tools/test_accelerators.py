"""The tool that compiles everything for accelerators."""

import importlib.util

import jax
import pytest

from tools import accelerators

CASES = {case.name: case for case in accelerators.cases()}
COMPILERS = {"tpu": "libtpu", "gpu": "jax_plugins"}


@pytest.fixture
def here(monkeypatch):
    """Compiles for this machine's device instead of a described one."""
    monkeypatch.setattr(accelerators, "devices", lambda target: jax.local_devices()[:1])
    monkeypatch.setattr(accelerators, "COMPILER_OPTIONS", {"tpu": {}, "gpu": {}})


@pytest.mark.costly
def test_a_program_is_compiled_once_and_reported(here, tmp_path, capsys, monkeypatch):
    words = ["accelerators", str(tmp_path), "--only=small/h100/local"]
    assert accelerators.main(words) == 0
    first = capsys.readouterr().out
    assert first.startswith("small/h100/local: ")
    for kind in ("arguments", "outputs", "temporaries", "code"):
        assert f" {kind} " in first
    assert " arguments 0.000 MB" not in first
    monkeypatch.setattr(accelerators, "compiled", None)
    assert accelerators.main(words) == 0
    assert capsys.readouterr().out == first


def test_a_program_that_does_not_compile_ends_with_1(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(accelerators, "compiled", lambda case: {"error": "INTERNAL: no"})
    assert accelerators.main(["accelerators", str(tmp_path), "--only=small/v5e/fedrod"]) == 1
    out, err = capsys.readouterr()
    assert "small/v5e/fedrod: INTERNAL: no\n" in out
    assert err == "not compiled: small/v5e/fedrod.\n"


@pytest.mark.costly
@pytest.mark.parametrize("name", CASES)
def test_a_program_for_an_accelerator(name):
    case = CASES[name]
    if importlib.util.find_spec(COMPILERS[case.platform]) is None:
        pytest.skip(f"{COMPILERS[case.platform]} is not installed")
    found = accelerators.compiled(case)
    assert "error" not in found and found["temporaries"] > 0
