"""Simulations that several modules compare, and their comparison to the bit."""

from functools import cache

import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.engine.host_states import HostStates
from fedjax_pfl.testing.toys import SEEDS, toy_federation

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

    def stop(progress):
        asked[0] += 1
        return asked[0] >= count

    return stop


def on_host(states):
    return states.to_host() if isinstance(states, HostStates) else states


def assert_same(a, b, tolerance=0):
    """Compares measurements, traffic and states."""

    def same(x, y, message=""):
        np.testing.assert_allclose(x, y, tolerance, tolerance, err_msg=message)

    for name in ("scores", "clients", "scalars", "matrices"):
        left, right = getattr(a, name), getattr(b, name)
        assert left.keys() == right.keys()
        for key in left:
            same(left[key], right[key], f"{name} {key}")
    for name in ("copies_up", "copies_down", "eval_rounds", "matrix_rounds"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    jax.tree.map(same, on_host(a.final.states), on_host(b.final.states))


def simulate(name="fedavg", rounds=3, *, settings=None, federation=None, **options):
    """Two runs in chunks of at most eight rounds: the programs are those of the shared checks."""
    options = {"seeds": SEEDS, "chunk": 8} | options
    federation = toy_federation() if federation is None else federation
    return pfl.simulate(pfl.make_algorithm(name, settings), federation, rounds, **options)
