"""The guide to one's own data, model, partition and algorithm runs as written."""

import re
from pathlib import Path

import pytest

import fedjax_pfl as pfl

GUIDE = Path(__file__).parents[2] / "docs/your_own.md"
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(autouse=True)
def known_names():
    before = [(known, dict(known)) for known in (pfl.core.ALGORITHMS, pfl.models.MODELS)]
    yield
    for known, names in before:
        known.clear()
        known.update(names)


def run_blocks(blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "guide"}
    for block in blocks:
        exec(compile(block, "your_own.md", "exec"), names)
    return names


def test_every_block(tmp_path, monkeypatch):
    blocks = [block for block in BLOCKS if "check_algorithm(PulledToMean())" not in block]
    assert len(blocks) == len(BLOCKS) - 1
    smaller = [block.replace('model="mlp"', 'model="softmax"') for block in blocks]
    assert smaller != blocks
    names = run_blocks(smaller, tmp_path, monkeypatch)
    assert names["result"].rounds == 5
    assert names["federation"].plan.head == "head"
    assert (tmp_path / "mine_partition.npz").exists()
    partition = pfl.Partition.load(tmp_path / "mine_partition.npz")
    assert partition.num_clients == 5
    dataset = pfl.load_dataset(f"npz:{tmp_path / 'mine.npz'}")
    assert dataset.num_classes == 4


@pytest.mark.slow
def test_the_suite(tmp_path, monkeypatch):
    run_blocks(BLOCKS, tmp_path, monkeypatch)
