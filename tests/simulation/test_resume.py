"""A simulation that was stopped and resumed ends with the same bits as one that was not."""

from functools import cache

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.simulation.checkpoints import Checkpoints
from fedjax_pfl.testing.toys import toy_federation

ROUNDS = 7
OPTIONS = {"seeds": (0, 3), "eval_every": 2, "matrix_rounds": (1, 4, 6), "chunk": 4}


def federation(**options):
    return toy_federation(dtype="float32", participation=0.6, validation_size=0, **options)


@cache
def whole(name):
    """The result of rounds that nobody stopped."""
    return pfl.simulate(pfl.make_algorithm(name), federation(), ROUNDS, **OPTIONS)


def stops_after(count):
    """Says stop at the `count`-th question."""
    asked = [0]

    def stop():
        asked[0] += 1
        return asked[0] >= count

    return stop


def assert_same(a, b):
    for name in ("scores", "clients", "scalars", "matrices"):
        left, right = getattr(a, name), getattr(b, name)
        assert left.keys() == right.keys()
        for key in left:
            np.testing.assert_array_equal(left[key], right[key], err_msg=f"{name} {key}")
    for name in ("copies_up", "copies_down", "eval_rounds", "matrix_rounds"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for x, y in zip(jax.tree.leaves(a.final.states), jax.tree.leaves(b.final.states), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    "name", ["feddwa", *(pytest.param(m, marks=pytest.mark.slow) for m in ("scaffold", "pfedla"))]
)
def test_stopped_again_and_again_it_ends_bit_by_bit_the_same(tmp_path, name):
    algorithm, stopped = pfl.make_algorithm(name), []
    while True:
        kept = Checkpoints(tmp_path, every_seconds=1e9)
        try:
            result = pfl.simulate(
                algorithm,
                federation(),
                ROUNDS,
                **OPTIONS,
                chunk_seconds=0,
                checkpoints=kept,
                stop=stops_after(2),
            )
            break
        except pfl.Interrupted as error:
            stopped.append(error.round)
        finally:
            kept.close()
    assert stopped == [2, 4, 6]
    assert_same(result, whole(name))


def test_checkpoints_between_chunks_change_nothing(tmp_path):
    algorithm = pfl.make_algorithm("feddwa")
    kept = Checkpoints(tmp_path, every_seconds=0)
    result = pfl.simulate(
        algorithm, federation(), ROUNDS, **OPTIONS, chunk_seconds=0, checkpoints=kept
    )
    assert_same(result, whole("feddwa"))
    assert kept.latest().round == ROUNDS - 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 8}, "rounds"),
        ({"seeds": (0, 4)}, "seeds and settings"),
        ({"eval_every": 1}, "evaluation"),
        ({"matrix_rounds": (1,)}, "kept matrices"),
        ({"algorithm": "fedavg"}, "algorithm"),
        ({"federation": {"learning_rate": 0.2}}, "seeds and settings; data, partition"),
        ({"federation": {"local_epochs": 2}}, "model or training"),
        ({"federation": {"seed": 1}}, "data, partition or learning rate"),
    ],
)
def test_another_simulation_is_refused(tmp_path, changes, said):
    def run(algorithm="feddwa", rounds=ROUNDS, stop=None, **options):
        fed = federation(**options.pop("federation", {}))
        kept = Checkpoints(tmp_path)
        options = OPTIONS | options
        pfl.simulate(
            pfl.make_algorithm(algorithm), fed, rounds, checkpoints=kept, stop=stop, **options
        )

    with pytest.raises(pfl.Interrupted):
        run(stop=lambda: True)
    with pytest.raises(pfl.InputError, match=f"are another simulation's: its {said}"):
        run(**changes)
