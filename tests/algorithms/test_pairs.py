"""Every algorithm after every other in one process gives what it gives alone in a fresh one."""

import itertools
import multiprocessing

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_for

ROUNDS = 3


def outcome(name: str) -> list[np.ndarray]:
    """All numbers of a short run: every model after the last round, every round's scores."""
    from tests import conftest  # in a fresh process: as many devices as here

    assert conftest
    algorithm = pfl.make_algorithm(name)
    result = pfl.simulate(algorithm, toy_for(algorithm, dtype="float32"), ROUNDS)
    seen = result.final.models(), result.scores, result.clients, result.scalars, result.matrices
    return [np.asarray(leaf) for leaf in jax.tree.leaves(seen)]


def ordered_pairs(names: list[str]) -> list[str]:
    """A closed walk along every ordered pair once (Hierholzer's)."""
    left = {name: [other for other in names if other != name] for name in names}
    stack, walk = [names[0]], []
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            walk.append(stack.pop())
    return walk[::-1]


def test_ordered_pairs():
    names = list("abcde")
    walk = ordered_pairs(names)
    steps = list(itertools.pairwise(walk))
    assert len(steps) == len(set(steps)) == 20
    assert all(a != b for a, b in steps)


@pytest.mark.costly
def test_algorithms_after_each_other():
    names = sorted(pfl.core.ALGORITHMS)
    with multiprocessing.get_context("spawn").Pool(2, maxtasksperchild=1) as pool:
        alone = dict(zip(names, pool.map(outcome, names, chunksize=1), strict=True))
    walk = ordered_pairs(names)
    assert len(walk) == len(names) * (len(names) - 1) + 1
    before = None
    for name in walk:
        for number, wanted in zip(outcome(name), alone[name], strict=True):
            message = f"{name} after {before}"
            np.testing.assert_array_equal(number, wanted, err_msg=message)
        before = name
