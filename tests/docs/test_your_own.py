"""The guides to data, partitions, models and algorithms of one's own run as written."""

import re
from pathlib import Path

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import check_algorithm

DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


DATA, ALGORITHM = blocks_of("your_own.md"), blocks_of("your_algorithm.md")


def run_blocks(blocks):
    names = {"__name__": "guide"}
    for block in blocks:
        smaller = block.replace('model="mlp"', 'model="softmax"')
        exec(compile(smaller, "your_own.md", "exec"), names)
    return names


def test_data_partition_and_model_of_the_guide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks(DATA)
    assert names["federation"].plan.head == "head"
    assert (tmp_path / "mine_partition.npz").exists()
    partition = pfl.Partition.load(tmp_path / "mine_partition.npz")
    assert partition.num_clients == 5
    dataset = pfl.load_dataset(f"npz:{tmp_path / 'mine.npz'}")
    assert dataset.num_classes == 4


@pytest.mark.costly
def test_algorithms_of_the_guide():
    """All upload what the server receives, too, and not only the first, which runs the suite."""
    before = set(pfl.core.ALGORITHMS)
    blocks = [block for block in ALGORITHM if "check_algorithm(PulledToMean())" not in block]
    assert len(blocks) == len(ALGORITHM) - 1
    assert run_blocks(blocks)["result"].rounds == 5
    added = [pfl.make_algorithm(name) for name in sorted(set(pfl.core.ALGORITHMS) - before)]
    assert len(added) > 4
    for algorithm in added:
        for check in ("uploads_withheld", "recorded_steps"):
            check_algorithm(algorithm, only=check, show=None)


@pytest.mark.costly
def test_suite_of_the_guide():
    run_blocks(ALGORITHM)
