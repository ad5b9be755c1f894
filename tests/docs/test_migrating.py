"""What docs/migrating.md says of other libraries' flags is what the commands answer."""

import ast
import re

import pytest

import fedjax_pfl as pfl
from experiments.cli import flags, unknown_flags
from fedjax_pfl.data.partitions.flbench import FLBENCH_EXPORT
from fedjax_pfl.results.headlines import HEADLINES
from tests.docs import pages

PAGE = (pages.ROOT / "docs/migrating.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`[^|]*) \| ([^|]*) \| ([^|]*)\|$", PAGE, re.MULTILINE)
SETTINGS = [row for row in ROWS if re.match(r"`\w+\.\w+`", row[1])]
FLAGS = [row for row in ROWS if row not in SETTINGS and not row[0].startswith("`--dataset=")]


def names(cell):
    return [name.lstrip("-") for name in re.findall(r"`([^`]+)`", cell)]


@pytest.fixture(scope="module")
def known():
    return flags.parse(["run"])


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: row[0])
def test_flags_are_answered_as_the_page_says(row, known):
    """By the nearest flag of ours, or by what makes one needless; our own names are flags here."""
    theirs, ours, why = row
    for name in names(theirs):
        said = unknown_flags.hint(name, known)
        if ours.strip():
            assert any(f"--{one} " in f"{said} " for one in names(ours)), (name, said)
        else:
            assert said.startswith("It is not needed here: "), (name, said, why)


def test_there_are_rows_of_all_three():
    assert len(FLAGS) > 40 and len(SETTINGS) > 8
    assert sum(len(names(row[0])) for row in FLAGS) > 70


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row[0])
def test_hyperparameters_exist(row):
    for name in names(row[1]):
        algorithm, _, key = name.partition(".")
        assert key in pfl.make_algorithm(algorithm).hyperparameters(), name


def test_headlines_are_named():
    assert set(re.findall(r"`--headline=(\w+)", PAGE)) == {"pfllib", "flbench", "flower", "final"}
    assert all(f"`{name}`" in PAGE or f"--headline={name}" in PAGE for name in HEADLINES)


def test_the_script_for_flbench_is_the_one_that_the_importer_names():
    (block,) = [b.text for b in pages.blocks(PAGE) if b.language == "python"]
    script = FLBENCH_EXPORT.format(folder="FL-bench/data/cifar10")
    assert ast.dump(ast.parse(block)) == ast.dump(ast.parse(script))
