"""The tool that compiles everything for accelerators: what it keeps and writes."""

from pathlib import Path

import pytest

import fedjax_pfl as pfl
from experiments.planning import plans, targets
from experiments.planning.costs import Costs
from tools import accelerators

PAGE = "a\n<!-- accelerators -->\nold\n<!-- end of accelerators -->\nb\n"
COSTS = Costs(step=1.5e6, steps=45, evaluation=1e6, rest=2e6, transfers={"all-reduce": [3, 80]})
PLAN = plans.Plan(
    lanes=5, fits=True, trace_seconds=1.0, compile_seconds=10.6, planned={"total": 400_000_000},
    estimated=360_000_000, costs=COSTS, cycles=7e7, rounds_per_second=21.46,
)  # fmt: skip


@pytest.fixture
def compiled(monkeypatch):
    """Cases that were compiled: none of them is."""
    found = []

    def compiled(case):
        found.append(case.name)
        return plans.Plan(error="INTERNAL") if case.algorithm == "local" else PLAN

    monkeypatch.setattr(accelerators, "compiled", compiled)
    monkeypatch.setattr(targets, "check_installed", lambda target: None)
    return found


def test_what_is_there_is_not_compiled_again(compiled, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    words = ["accelerators", str(tmp_path / "kept"), str(page)]
    assert accelerators.main([*words, "--only=small/v5e/fedd"]) == 0
    assert compiled == ["small/v5e/feddwa", "small/v5e/feddyn"]
    assert capsys.readouterr().out.endswith("2 programs compiled, 0 of them failed or too large.\n")
    head, table = page.read_text().split("<!-- accelerators -->\n")
    assert head == "a\n" and table.endswith("\n<!-- end of accelerators -->\nb\n")
    assert "| `feddwa` | 12 | 3 all-reduce |\n" in table and "old" not in table
    assert accelerators.main([*words, "--only=/feddwa"]) == 0
    assert len(compiled) == len(set(compiled)) == 7
    table = page.read_text()
    assert "| `feddwa` | 12 | 12 | 12 | 3 all-reduce, 3 all-reduce, 3 all-reduce |\n" in table
    assert "| `feddwa` | v5e | 0.400 | 0.90 | 45 | 1.50 | 1.00 | 2.00 | 21.5 |\n" in table


def test_what_fails_is_said(compiled, tmp_path, capsys):
    assert accelerators.main(["accelerators", str(tmp_path), "--only=small/v5e/local"]) == 1
    assert capsys.readouterr().err == "small/v5e/local: INTERNAL\n"
    assert "| `local` | fails |" in accelerators.table(accelerators.collect(tmp_path, "none"))


@pytest.mark.parametrize("words", [[], ["a", "b", "c"], ["a", "--olny=b"]])
def test_how_it_is_called(words, compiled, capsys):
    assert accelerators.main(["accelerators", *words]) == 2
    assert capsys.readouterr().err.startswith("usage: ") and not compiled


def test_a_page_without_marks_is_left(compiled):
    with pytest.raises(pfl.InputError, match="The page has no marks <!-- accelerators -->"):
        accelerators.filled("nothing", {})


def test_the_documented_table_has_every_algorithm():
    page = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
    _, table = page.read_text().split(accelerators.MARKS[0])
    table = table.split(accelerators.MARKS[1])[0]
    for name in accelerators.ALGORITHMS:
        assert f"| `{name}` |" in table, name
