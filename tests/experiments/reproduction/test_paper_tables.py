"""The papers' tables as files: damaged ones, and every cell of ours can be built."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from experiments import reproduce
from experiments.cli import algorithms, data_flags, flags
from experiments.reproduction import datasets, planning, table_report
from experiments.reproduction import paper_tables as reproduce_tables
from tests.experiments.reproduction.small_table import TABLE, request, write_table
from tools import settings_table

ROOT = Path(__file__).resolve().parents[3]
NAMES = reproduce_tables.names()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('algorithm = "local"', 'algorithm = "locale"', "neither registered nor among absent"),
        ("paper = [90, 50]", "paper = [90]", "row 'Local' needs 2 percentages"),
        ("paper = [90, 50]", "paper = [90, 500]", "row 'Local' needs 2 percentages"),
        ("digits_quick", "none", "no preset 'none'"),
        ('score = "best"', 'score = "top"', "score must be one of"),
        ('title = "DWA"\n', 'title = "DWA 1"\n', "its rows need different names"),
        ("paper = [91, 60]", "paper = [91, 60]\nbeside = true", "'DWA (1)' needs 0 percentages"),
        ("paper = [91, 60]", "paper = 91", "paper of row 2 must be a list, got 91"),
        ("paper = [91, 60]", "paper = ['91', 60]", "paper 1 of row 2 must be a number, got '91'"),
        ('title = "CIFAR-10"\n', "", "column 2 needs 'title'"),
        ('title = "DWA"', 'titel = "DWA"', "row 3 has an unknown key 'titel'"),
        ("stand_in = true", "stand_in = 1", "stand_in of column 2 must be true or false, got 1"),
        ("paper = [90", 'client = "a"\npaper = [90', "client of row 1 must be a whole"),
        ("paper = [90", 'reading.code = "x"\npaper = [90', "of row 1 must be a table"),
        ("paper = [90", 'reading.code.seys = "x"\npaper = [90', "unknown key 'seys'"),
        ('["feddwa.top_k=1"]', '["top_k=1"]', "has the setting 'top_k=1': write feddwa.NAME="),
        ("small = [", "small = [3, ", "small 1 must be text, got 3"),
        ("[[column]]", "[[colunm]]", "the file has an unknown key 'colunm'"),
        ("[[row]]", "[row", "can't be read as a table"),
    ],
)
def test_damaged_tables(tmp_path, before, after, said):
    assert before in TABLE
    write_table(tmp_path, TABLE.replace(before, after, 1))
    with pytest.raises(pfl.InputError) as error:
        reproduce_tables.load("mine/1", tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize("name", [name for name in NAMES if name[:-1] in ("cwfedavg/", "feddwa/")])
def test_cfl_can_split_at_every_scale(name):
    """And the table says so where the split is another one than at full scale."""
    table = reproduce_tables.load(name)
    for scale in reproduce_tables.SCALES:
        if scale == "network" and not table.network:
            continue
        asked = request(f"--table={name}", f"--scale={scale}")
        for cell in asked.cells(table.column[0]):
            line = table.line(cell.row)
            if line.algorithm != "cfl":
                continue
            args = cell.config
            (cfl,) = algorithms.parse_algorithms(args.algorithms, args["set"].value).values()
            costs = table.column[0].quantity == "traffic"
            assert costs or not cfl.round_remarks(None, args.rounds)
            text = " ".join(table_report.Report(table, scale, (), ()).meaning())
            told = f"At this scale only: {line.title} with cfl.first_split=4." in text
            assert told == (not costs and scale in reproduce_tables.REDUCED)


def test_a_folder_without_tables(tmp_path, capsys):
    for words in (["--table=feddwa/1"], ["--list"], ["--all"]):
        assert reproduce.main(["reproduce", f"--tables={tmp_path}", *words]) == 2
        assert "has no tables: it needs PAPER/TABLE.toml" in capsys.readouterr().err


def test_default_folder_of_a_table():
    def name(*words):
        return str(planning.output_folder("feddwa-1", "small", flags.parse(["run", *words])))

    assert name() == name("--data_dir=x") == "runs/reproduce-feddwa-1-small"
    assert name("--rounds=3").startswith("runs/reproduce-feddwa-1-small-")
    assert name("--rounds=3") != name("--rounds=4")


def test_every_paper_has_a_table(capsys):
    assert {name.partition("/")[0] for name in NAMES} == set(settings_table.PAPERS)
    assert reproduce.main(["reproduce", "--list"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n{name}: " in f"\n{text}" for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_its_algorithm(name):
    table = reproduce_tables.load(name)
    assert not table.absent and all(line.registered for line in table.row)


@pytest.mark.parametrize("name", [n for n in NAMES if reproduce_tables.load(n).network])
def test_network_scale_keeps_the_papers_network_and_rates(name):
    reduced, full = (
        request(f"--table={name}", "--output_dir=o", f"--scale={scale}")
        for scale in ("network", "full")
    )
    kept = ("--rounds=", "--eval_every=", "--train_samples=", "--num_seeds=1")
    assert all(word.startswith(kept) for word in reduced.table.network)
    for column in reduced.table.column:
        for one, other in zip(reduced.cells(column), full.cells(column), strict=True):
            changed = set(reduced.table.network)
            assert {*one.words} - {*other.words} == changed and not {*other.words} - {*one.words}


def test_a_table_without_network_scale_is_refused(capsys):
    assert reproduce.main(["reproduce", "--table=waffle/4", "--scale=network"]) == 2
    assert "waffle/4 has no --scale=network" in capsys.readouterr().err


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "scale"),
    [(n, s) for n in NAMES for s in ("small", "medium", "network")
     if reproduce_tables.load(n).has_scale(s)],
)  # fmt: skip
def test_data_sets_are_large_enough(name, scale):
    asked = request(f"--table={name}", f"--scale={scale}")
    for column in asked.table.column:
        args = next(asked.cells(column)).config
        if args.dataset in datasets.KINDS:
            data_flags.make_partition(args, datasets.blank(args.dataset))


@pytest.mark.costly
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", ["small", "medium", "full"])
def test_flags_of_every_cell(name, scale):
    """Its preset exists, its flags parse, and its algorithm takes its settings."""
    asked = request(f"--table={name}", f"--scale={scale}")
    lines = [line for line in asked.table.row if line.registered]
    assert lines, "a table without an algorithm is none"
    for column in asked.table.column:
        runs = list(asked.cells(column))
        there = {line for line in lines if asked.table.has_run(line, column)}
        assert {cell.row for cell in runs} == {line.name for line in there}
        for cell in runs:
            args, line = cell.config, asked.table.line(cell.row)
            assert args.algorithms == [line.algorithm]
            given = [word.removeprefix("--set=") for word in cell.words if "--set=" in word]
            settings = {planning._filled(word, column.values) for word in line.settings}
            assert settings <= set(given)
            (algorithm,) = algorithms.parse_algorithms(args.algorithms, args["set"].value).values()
            for setting in line.settings:  # the algorithm's, not one of local training
                assert re.split("[.=]", setting)[1] in vars(algorithm)
            preset = settings_table.read(column.preset_of())
            changed = [n for n in preset.flags() if preset.args[n].value != args[n].value]
            assert bool(changed) == (scale != "full") or line.flags or asked.table.flags


READINGS = [(name, one) for name in NAMES for one in reproduce_tables.load(name).readings()]


@pytest.mark.costly
@pytest.mark.parametrize(("name", "reading"), READINGS)
def test_flags_of_every_reading(name, reading):
    """Its flags parse, and its settings are those of the algorithms."""
    words = [f"--table={name}", "--scale=full"]
    plain, asked = request(*words), request(*words, f"--reading={reading}")
    assert asked.output != plain.output
    changed = 0
    for column in asked.table.column:
        for one, other in zip(plain.cells(column), asked.cells(column), strict=True):
            args = other.config
            algorithms.parse_algorithms(args.algorithms, args["set"].value)
            changed += one.words[:-1] != other.words[:-1]
    assert changed and asked.table.differences(reading)


def test_reading_without_effect_at_a_scale():
    """The small rate takes the place of the code's; what remains is said."""
    table = reproduce_tables.load("cwfedavg/1")
    assert "learning rate 0.005" in table.differences("code")
    assert not any("rate" in said for said in table.differences("code", "small"))
    assert table.readings("small") == ["code"], "FedAMP's and FedFomo's settings"
    only = replace(table, row=tuple(replace(line, reading={}) for line in table.row))
    assert only.readings() == ["code"] and only.readings("small") == []


@pytest.mark.costly
@pytest.mark.parametrize("name", NAMES)
def test_every_small_run_can_begin(blank_data_sets, name, tmp_path):
    asked = request(f"--table={name}", f"--output_dir={tmp_path}/out")
    first, *others = (list(asked.cells(column)) for column in asked.table.column)
    for cell in [*first, *(cells[0] for cells in others)]:  # each algorithm, each column
        planning._check(asked, cell)


def test_page_names_every_table():
    """`tests/docs/test_commands.py` parses its commands."""
    text = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"`(\w+/\d+)`(?=[, |])", text)) == NAMES
