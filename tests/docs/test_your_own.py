"""The guides to data, partitions, models and algorithms of one's own run as written."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.checks import CHECKS
from tests.docs import pages


def blocks_of(page):
    return pages.python_blocks((pages.ROOT / "docs" / page).read_text(encoding="utf-8"))


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


@pytest.mark.costly
def test_python_of_debugging(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = pages.run_python("docs/debugging.md")
    assert names["state"].round == 2
    assert "round 1: weights [0." in capfd.readouterr().out
    assert any((tmp_path / "profile").rglob("*.pb"))


@pytest.mark.costly
@pytest.mark.parametrize("check", CHECKS)
def test_the_prototype_method_passes_the_suite(check):
    CHECKS[check](pages.run_python("docs/api/round.md")["ClassMeans"]())
