"""Stacks that are read block by block: what is computed of them is that of whole stacks."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.aggregation import mixing, similarity, streamed
from fedjax_pfl.aggregation.leaf_plan_of_model import leaf_plan
from fedjax_pfl.utils import trees

pytestmark = pytest.mark.costly

COUNT = 7
ROWS = jnp.array([1, 4], jnp.int32)
asked = []


def whole_stack(seed=0, count=COUNT):
    rng = np.random.default_rng(seed)
    shapes = {"a": (count, 3, 2), "b": (count, 5)}
    made = {name: jnp.asarray(rng.normal(size=shape)) for name, shape in shapes.items()}
    return {"params": made}


def far(stack, changed=False):
    """The stack, "b" whole and of "a" only `ROWS` there; these differ from those to be read."""
    leaf = stack["params"]["a"]
    stored = leaf.at[ROWS].set(99.0) if changed else leaf

    def reader(numbers, shapes, rows):
        asked.append(rows)
        assert (numbers, [s.shape for s in shapes]) == ((3,), [(len(rows), 3, 2)])
        return [stored[rows]]

    there = trees.PartialLeaf(leaf[ROWS], ROWS, COUNT, reader, 3)
    there = there.next(leaf[ROWS]) if changed else there
    return {"params": {"a": there, "b": stack["params"]["b"]}}


STACK = whole_stack()
PLAN = leaf_plan(jax.tree.map(lambda x: x[0], STACK))


def everything(stack, own, of):
    """What the server computes of `of(stack)`, some or all rows of which are there."""
    weights = jnp.asarray(np.random.default_rng(2).random((2, COUNT)), jnp.float32).at[:, 2].set(0)
    given, onto = of(stack), jax.tree.map(lambda x: x[0], own)
    return {
        "cosines": similarity.cosines(own, given),
        "gram": similarity.gram(own, given),
        "centred": similarity.gram(own, given, centred=True),
        "distances": similarity.squared_distances(own, given, partners=ROWS),
        "mixed": mixing.apply(weights, given, own, PLAN),
        "sum": mixing.weighted_sum(weights[0], given, onto),
    }


@pytest.mark.parametrize("block", [1, 2**22])
def test_what_a_server_computes_block_by_block(monkeypatch, block):
    """Of models with some far from the others and near each other, whose distances are direct."""
    monkeypatch.setattr(streamed, "BLOCK", block)
    stack = jax.tree.map(lambda x: x.at[:4].multiply(1e-3).at[:4].add(5.0), whole_stack())
    own = jax.tree.map(lambda x: x[ROWS] + 1e-3, stack)

    @jax.jit
    def all_ways(stack, own):
        ways = (lambda x: x), partial(far, changed=True)
        return [everything(stack, own, of) for of in ways]

    expected, *found = all_ways(stack, own)
    for each in found:
        chex.assert_trees_all_close(each, expected, rtol=1e-4, atol=1e-4)


def test_rows_that_nobody_wants_are_not_read(monkeypatch):
    monkeypatch.setattr(streamed, "BLOCK", 1)
    wanted = jnp.zeros(COUNT, bool).at[jnp.array([3, 5, 6])].set(True)
    with jax.disable_jit():
        asked.clear()
        total = streamed.sum_over_blocks(
            lambda block, rows, real: (rows * real).sum(), far(STACK), wanted
        )
    read = [np.asarray(rows).tolist() for rows in asked if not isinstance(rows, jax.core.Tracer)]
    assert read == [[3, 5], [6, 0]]
    assert total == 14


def test_without_a_reader_nothing_is_computed():
    leaf = trees.PartialLeaf(jnp.ones((2, 3)), ROWS, COUNT)
    with pytest.raises(TypeError, match=r"PartialLeaf|not on the device"):
        similarity.cosines([jnp.ones((2, 3))], [leaf])
