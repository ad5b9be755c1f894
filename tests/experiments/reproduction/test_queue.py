"""Several tables in one queue: the order, going on, and what can't be made."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import reproduce, run
from experiments.cli import data_flags
from experiments.outputs import html_page
from experiments.reproduction import datasets, planning
from fedjax_pfl.data.sources.source_registry import DATASETS
from tests.experiments.reproduction.small_table import column, request, row, table_text, write_table
from tests.experiments.small_runs import read_rows

ROOT = Path(__file__).resolve().parents[3]
LOCAL = row("Local", "local", 90)


def text(number, *more, line=LOCAL, **facts):
    named = {"table": f"Table {number}", "caption": "digits & <more>", "score": "final"}
    flags = ["--compilation_cache=", "--eval_every=1"]
    return table_text([column("digits", **facts)], [line, *more], flags=flags, **named)


TABLES = {
    "two": text(2, row("Local again", "local", 80, flags=["--batch_size=9"])),
    "one": text(1),
    "bad": text(3, line=row("Local", "l2c", 90)),
    "gone": text(4, preset="pfedla/table1_cifar10_10"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(exit code, the queue's folder, that of the tables)."""
    folder = tmp_path_factory.mktemp("queue")
    for name, content in TABLES.items():
        write_table(folder / "tables", content, f"mine/{name}")
    with contextlib.chdir(ROOT):
        return call(folder / "tables", folder / "out"), folder / "out", folder / "tables"


def call(tables, output, *words):
    own = ["--all", f"--tables={tables}", f"--output_dir={output}"]
    return reproduce.main(["reproduce", *own, *words])


def test_tables_one_after_the_other(finished):
    code, output, _ = finished
    assert code == 2, "one table can't be made, and the others are"
    made = {path.parent.name: read_rows(path) for path in output.glob("*/table.csv")}
    assert {name: [row["state"] for row in rows] for name, rows in made.items()} == {
        "mine-one": ["measured"], "mine-two": ["measured"] * 2, "mine-gone": ["data missing"],
    }  # fmt: skip


def test_queue_continues(finished, monkeypatch, capsys):
    """Nothing finished is run again; other flags are refused."""
    _, output, tables = finished
    monkeypatch.setattr(run, "run", lambda *_, **__: pytest.fail("nothing is left to run"))
    assert call(tables, output) == 2
    text = capsys.readouterr().out
    assert text.index("Table 4 of 4: mine/two") > text.index("mine/one")  # the most runs last
    assert "mine/bad can't be made: " in text and "l2c uses validation samples" in text
    assert call(tables, output, "--scale=medium") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--all", "--table=pfedla/1"], "--all is every table: leave --table out."),
        (["--all", "--rows=local"], "--rows belongs to one table"),
        (["--all", "--reading=text"], "Unknown reading 'text'"),
        (["--table=feddwa/5", "--reading=code"], "feddwa/5 has no --reading=code"),
        (["--all", "--stand_in=mnist:digits,mnist:digits"], "names two data sets for mnist"),
    ],
)
def test_queue_refused(tmp_path, capsys, words, said):
    assert reproduce.main(["reproduce", *words, f"--output_dir={tmp_path / 'out'}"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_tables_without_the_scale(finished, capsys):
    assert call(finished[2], finished[1], "--scale=network") == 2
    assert f"No table in {finished[2]} has --scale=network." in capsys.readouterr().err


def test_a_reading_is_taken_where_there_is_one():
    words = ["reproduce", "--table=feddwa/1,feddwa/5", "--reading=paper"]
    asked = {one.table.name: one for one in reproduce.requests_of(*reproduce.parse(words))}
    assert asked["feddwa/1"].reading == "paper" and asked["feddwa/5"].reading is None


@pytest.mark.costly
def test_blank_samples_for_costs(monkeypatch):
    """Traffic needs no data; a column whose accuracy is measured takes the data set named."""
    monkeypatch.setattr(datasets, "LARGEST", 2_000_000)
    asked = request("--table=feddwa/4")
    column = asked.table.column[0]
    assert asked.substitutes(column, "cifar100") == ["blank/cifar100"]
    section, todo = planning.plan(replace(asked, rows=("fedavg",)), column)
    data_flags.last_loaded.cache_clear()
    assert "blank samples" in section.title and not section.other_data
    (cell,) = todo
    assert "--dataset=blank/cifar100" in cell.words
    data = DATASETS["blank/cifar100"].load(None)
    assert data.input_shape == (32, 32, 3) and data.num_classes == 100
    assert datasets.register_blank("ag_news") is None
    asked = request("--table=feddwa/6", "--stand_in=cifar10:fashion_mnist")
    result = asked.substitutes(asked.table.column[2], "cifar10")
    assert result == ["fashion_mnist", "blank/cifar10"]


def test_markdown_as_html(tmp_path):
    text = "# A\n\n| x | y |\n| --- | ---: |\n| <b> |  |\n\n- **n**: said.\n\nwords\n"
    text += "\n| a |\n| --- |\n| <u>1</u> |\n"
    page = html_page.page("T", text, tmp_path)
    assert "<h1>A</h1>" in page and "<td>&lt;b&gt;</td>" in page
    assert "<td><u>1</u></td>" in page
    assert "<li><strong>n</strong>: said.</li>" in page and "<p>words</p>" in page


def test_a_table_given_twice_is_one(tmp_path):
    words = ["--table=waffle/4,feddwa/6,waffle/4", "--output_dir", str(tmp_path)]
    asked = reproduce.requests_of(*reproduce.parse(["reproduce", *words]))
    assert [one.table.name for one in asked] == ["feddwa/6", "waffle/4"]
    first = next(asked[0].cells(asked[0].table.column[0]))
    assert first.config.output_dir == str(first.folder)
    assert first.folder.is_relative_to(tmp_path / "feddwa-6")
