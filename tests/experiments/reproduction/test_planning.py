"""What a table's runs are, and on which data: decided before any of them begins."""

from dataclasses import replace

import pytest

from experiments import run
from experiments.cli import flags
from experiments.reproduction import datasets, planning
from experiments.reproduction import paper_tables as reproduce_tables
from fedjax_pfl.data.sources.source_registry import DATASETS, Source
from tests.experiments.reproduction.small_table import TABLE, call, write_table


@pytest.fixture
def folder(tmp_path):
    return write_table(tmp_path / "tables")


def test_a_data_set_of_the_command_line_is_not_the_papers(folder, tmp_path):
    table = reproduce_tables.load("mine/1", folder)
    own, cifar = table.column
    for more, column, elsewhere in (
        ((), cifar, False),
        (("--dataset=digits",), own, False),
        (("--dataset=digits",), cifar, True),
    ):
        asked = planning.Request(table, "small", more, tmp_path / "out")
        section, _ = planning.on_data(asked, column)
        assert section.other_data == elsewhere
        assert ("on digits instead of the paper's data set" in section.title) == elsewhere
    section, _ = planning.plan(replace(asked, rows=("local",)), cifar)
    assert section.other_data and "on digits" in section.title


def test_row_of_an_unknown_client(folder, tmp_path, monkeypatch, capsys):
    for client, said in ((3, "The row 'Local' is client 3, and there are clients 0..2."), (2, "")):
        changed = TABLE.replace('algorithm = "local"', f'algorithm = "local"\nclient = {client}')
        write_table(folder, changed)
        monkeypatch.setattr(run, "run", lambda *_, **__: 1)
        words = ("--columns=digits", "--rows=local")
        assert call(folder, tmp_path / "out", *words) == (2 if said else 1)
        assert said in capsys.readouterr().err


def test_files_of_another_data_set_are_noticed(monkeypatch):
    args = flags.parse(["run", "--dataset=mnist"])

    def found(name, *most):
        source = Source("a stand-in", lambda data_dir: datasets.blank(name, *most))
        monkeypatch.setitem(DATASETS, "mnist", source)
        return [datasets.check_data(args, complete) for complete in (False, True)]

    assert found("mnist") == [(None, None)] * 2
    problem, note = found("fashion_mnist")[0]
    assert "are another data set's" in problem and "6,000 to 6,000" in problem and note is None
    (small, said), (full, nothing) = found("mnist", 100, 20)
    assert small is None and said == "1,200 of the 70,000 samples of mnist"
    assert "is incomplete" in full and nothing is None
