"""Algorithms of one's own whose models have shared leaves and clients' own ones."""

import re
from pathlib import Path

import jax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import core, trees
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.suite import CHECKS
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation

GUIDE = Path(__file__).parents[2] / "docs/your_own.md"
QUICK = ("partial_participation", "uploads")


@pytest.fixture(scope="module")
def own_heads():
    """The algorithm of the guide."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (block for block in blocks if "class OwnHeads" in block)
    names = {"core": core, "mixing": pfl.mixing, "trees": trees, "Any": object}
    exec(block.partition("print(")[0], names)
    yield names["OwnHeads"]()
    del core.ALGORITHMS["own_heads"]


def test_it_is_fedper(own_heads):
    with jax.enable_x64(True):
        federation = toy_federation(participation=0.6)
        ours, records = run_rounds(own_heads, federation)
        theirs, wanted = run_rounds(pfl.make_algorithm("fedper"), federation)
    assert_close(ours[-1].server, theirs[-1].server, "server", 1e-12)
    assert_close(ours[-1].own, theirs[-1].private, "heads", 1e-12)
    assert_close(records[-1]["scores"], wanted[-1]["scores"], "scores", 1e-12)


@pytest.mark.parametrize(
    "check", [pytest.param(c, marks=() if c in QUICK else pytest.mark.thorough) for c in CHECKS]
)
def test_it_passes_the_suite(own_heads, check):
    check_algorithm(own_heads, only=check, show=None)


def test_models_without_private_leaves_are_one():
    assembled = trees.assemble({"params": {"w": 1.0}}, {"params": {"w": None}})
    assert isinstance(assembled, core.Broadcast) and assembled.model == {"params": {"w": 1.0}}
