"""Python on the pages for authors of algorithms runs as written."""

import re

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.checks import CHECKS
from tests.docs.pages import ROOT


@pytest.fixture(autouse=True)
def known_algorithms():
    before = dict(pfl.core.ALGORITHMS)
    yield
    pfl.core.ALGORITHMS.clear()
    pfl.core.ALGORITHMS.update(before)


def names_of(page):
    """What the blocks of a page define, one after the other."""
    text = (ROOT / page).read_text(encoding="utf-8")
    names = {"__name__": "guide"}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.thorough
def test_debugging(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = names_of("docs/debugging.md")
    assert names["state"].round == 2
    assert "round 1: weights [0." in capfd.readouterr().out
    assert any((tmp_path / "profile").rglob("*.pb"))


CHECKED = ("others_data", "recorded_steps")


@pytest.mark.parametrize(
    "check",
    [pytest.param(name, marks=() if name in CHECKED else pytest.mark.thorough) for name in CHECKS],
)
def test_the_prototype_method_passes_the_suite(check):
    CHECKS[check](names_of("docs/api/round.md")["ClassMeans"]())
