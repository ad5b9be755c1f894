"""Python on the pages for authors of algorithms runs as written."""

import pytest

from fedjax_pfl.testing.checks import CHECKS
from tests.docs import pages


@pytest.mark.costly
def test_python_of_debugging(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = pages.run_python("docs/debugging.md")
    assert names["state"].round == 2
    assert "round 1: weights [0." in capfd.readouterr().out
    assert any((tmp_path / "profile").rglob("*.pb"))


@pytest.mark.costly
@pytest.mark.parametrize("check", CHECKS)
def test_the_prototype_method_passes_the_suite(check):
    CHECKS[check](pages.run_python("docs/api/round.md")["ClassMeans"]())
