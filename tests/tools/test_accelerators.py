"""The tool that compiles everything for accelerators: what it keeps and writes."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from experiments.planning import plans, targets
from experiments.planning.costs import Costs
from tools import accelerator_tables, accelerators
from tools.accelerator_tables import Case

PAGE = "a\n<!-- accelerators -->\nold\n<!-- end of accelerators -->\nb\n"
COSTS = Costs(step=1.5e6, steps=45, evaluation=1e6, rest=2e6, transfers={"all-reduce": [3, 80]})
PLAN = plans.Plan(
    lanes=5, fits=True, trace_seconds=1.0, compile_seconds=10.6, planned={"total": 400_000_000},
    costs=COSTS, step_floor=5e5, cycles=7e7, rounds_per_second=21.46,
)  # fmt: skip


@pytest.fixture
def compiled(monkeypatch):
    """Cases that were compiled: none of them is."""
    result = []

    def compiled(case):
        result.append(case.name)
        return plans.Plan(error="INTERNAL") if case.algorithm == "local" else PLAN

    monkeypatch.setattr(accelerators, "compiled", compiled)
    monkeypatch.setattr(targets, "check_installed", lambda target: None)
    return result


@pytest.mark.costly
def test_what_is_there_is_not_compiled_again(compiled, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    words = ["accelerators", str(tmp_path / "kept"), str(page)]
    assert accelerators.main([*words, "--only=small/v5e/fedd"]) == 0
    names = "feddbe", "feddistill", "feddpa", "feddwa", "feddyn"
    assert compiled == [f"small/v5e/{name}" for name in names]
    assert capsys.readouterr().out.endswith("5 programs compiled, 0 of them failed or too large.\n")
    head, table = page.read_text().split("<!-- accelerators -->\n")
    assert head == "a\n" and table.endswith("\n<!-- end of accelerators -->\nb\n")
    assert "| `feddwa` | 12 |\n" in table and "old" not in table
    assert accelerators.main([*words, "--only=/feddwa"]) == 0
    assert len(compiled) == len(set(compiled)) == 10
    table = page.read_text()
    assert "| `feddwa` | 12 | 12 | 12 | 3 all-reduce |\n" in table
    assert "| cnn | `feddwa` | v5e | 0.400 | 45 | 1.50 | 3.0 | 1.00 | 2.00 | 21.5 |" in table


def test_a_fresh_folder_adds_to_the_tables_that_are_there(compiled, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    words = ["accelerators", str(tmp_path / "kept"), str(page)]
    assert accelerators.main([*words, "--only=/pfedla"]) == 0
    before = page.read_text()
    words[1] = str(tmp_path / "fresh")
    assert accelerators.main([*words, "--only=/feddwa"]) == 0
    both = page.read_text()
    missing = [line for line in both.splitlines() if line not in before.splitlines()]
    assert set(before.splitlines()) < set(both.splitlines())
    assert len(missing) == 4 and all("`feddwa`" in line for line in missing)
    assert accelerators.main([*words, "--only=no such case"]) == 0
    assert page.read_text() == both


def test_a_plan_replaces_what_stood_there():
    cases = [Case("small", "v5e:2x2", "local"), Case("cnn", "v5e", "local")]
    page = accelerator_tables.tables(cases, {case.name: asdict(PLAN) for case in cases})
    bare = asdict(plans.Plan(trace_seconds=2, compile_seconds=3, error="INTERNAL"))
    lines = accelerator_tables.tables(cases, {case.name: bare for case in cases}, page).splitlines()
    assert [lines[2], lines[-1]] == ["| `local` | fails |", "| cnn | `local` | v5e | fails |"]
    assert accelerator_tables.tables(cases, {}, page) == page


def test_rows_and_columns_that_are_gone_are_left_out():
    page = "| Algorithm | a | c |\n| --- | --- | --- |\n| x | 1 | 2 |\n| z | 3 | 4 |\n"
    page += "\n| Network | Algorithm | a |\n| --- | --- | ---: |\n| n | y | 5 |\n"
    cells = accelerator_tables.read(page, ["Algorithm"])
    table = accelerator_tables.markdown(["Algorithm"], ["a"], ["b"], [("x",), ("y",)], cells)
    assert table.splitlines() == ["| Algorithm | a |", "| --- | ---: |", "| x | 1 |"]


def test_failed_programs(compiled, tmp_path, capsys):
    assert accelerators.main(["accelerators", str(tmp_path), "--only=small/v5e/local"]) == 1
    assert capsys.readouterr().err == "small/v5e/local: INTERNAL\n"
    result = accelerators.collect(tmp_path, "none")
    assert "| `local` | fails |" in accelerator_tables.tables(accelerators.cases(), result)


@pytest.mark.parametrize("words", [[], ["a", "b", "c"], ["a", "--olny=b"]])
def test_accelerators_refused(words, compiled, capsys):
    with pytest.raises(SystemExit, match="2"):
        accelerators.main(["accelerators", *words])
    assert capsys.readouterr().err.startswith("usage: ") and not compiled


def test_a_page_without_marks_is_left(compiled):
    with pytest.raises(pfl.InputError, match="The page has no marks <!-- accelerators -->"):
        accelerator_tables.filled("nothing", [], {})


def test_the_documented_table_has_registered_algorithms():
    """One that is new is compiled by the next `make accelerators`, which takes an hour."""
    page = Path(__file__).resolve().parents[2] / "docs" / "engineering_log.md"
    _, table = page.read_text().split(accelerator_tables.MARKS[0])
    table = table.split(accelerator_tables.MARKS[1])[0]
    named = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert len(named) > 40 and named <= set(accelerators.ALGORITHMS)
