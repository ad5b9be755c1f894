"""The README runs as written, and its numbers are those of the demo."""

import csv
import os
import re
import subprocess
import sys

import pytest

from experiments.cli import flags
from tests.docs import pages

README = (pages.ROOT / "README.md").read_text(encoding="utf-8")
PRESET = ["run", "--preset=digits_groups"]


def table():
    """The demo's table as the README has it, a dictionary a row."""
    lines = [line.strip("|") for line in README.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


@pytest.mark.costly
def test_python_of_the_readme(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = pages.python_blocks(README)
    short = block.replace("rounds=20", "rounds=2").replace('model="mlp"', 'model="softmax"')
    assert "rounds=2," in short and "softmax" in short
    exec(compile(short, "README.md", "exec"), {})
    assert "Result(feddwa: 20 clients, 2 rounds, 2 seed(s)" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"accuracy.png", "mixing.png"}


def test_the_speeds_are_those_of_their_page():
    page = (pages.ROOT / "docs/performance.md").read_text(encoding="utf-8")
    times = re.findall(r"^\|.+\| time relative to the PyTorch loop \| \**(\d*\.\d+)", page, re.M)
    shown = [f"{1 / float(one):.2g}" for one in sorted(times, reverse=True)]
    stated = re.search(r"\*\*It is ([\d.]+) to ([\d.]+) times.*?: (.*?)\. ", README, re.DOTALL)
    assert stated and list(stated.groups()[:2]) == [shown[0], shown[-1]]
    assert re.findall(r"[\d.]*\d", stated[3]) == shown


def test_the_home_page_has_the_same_python():
    home = (pages.ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert pages.python_blocks(home) == pages.python_blocks(README)


def test_the_table_is_of_the_presets_algorithms():
    args = flags.parse(PRESET)
    assert [row["Algorithm"] for row in table()] == list(args.algorithms)
    assert f"over {args.num_seeds} seeds" in " ".join(README.split())


def test_the_badges_say_what_the_package_says():
    config = (pages.ROOT / "setup.cfg").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)$", config, re.MULTILINE)
    (licence,) = re.findall(r"^license = (.+)$", config, re.MULTILINE)
    for name, said in (("python", " | ".join(versions)), ("license", licence)):
        file = f"docs/images/badges/{name}.svg"
        assert f">{said}</text>" in (pages.ROOT / file).read_text(encoding="utf-8")
        assert f"]({file})" in README


@pytest.mark.costly
def test_the_demo_prints_the_readmes_table(tmp_path):
    """To rounding, which training magnifies: within the table's own intervals."""
    words = [*PRESET[1:], f"--output_dir={tmp_path}/demo"]
    command = [sys.executable, "-m", "experiments.run", *words]
    # As users run it: the suite's flags leave programs without optimizations.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run(command, cwd=pages.ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    with (tmp_path / "demo/comparison.csv").open(newline="") as file:
        rows = {row["algorithm"]: row for row in csv.DictReader(file)}
    for row in table():
        said, half = float(row["Accuracy %"]), float(row["± 95 %"])
        result = rows[row["Algorithm"]]["personalized_test_accuracy_last_round_mean_over_clients"]
        assert abs(100 * float(result) - said) < half
