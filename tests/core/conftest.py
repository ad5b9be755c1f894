"""Algorithms that are registered for one test."""

import pytest

from fedjax_pfl import core


@pytest.fixture
def made():
    """Registers a class for one test."""
    names = []

    def make(cls):
        names.append(cls.__name__.lower())
        return core.algorithm(names[-1])(type(cls.__name__, (cls,), {}))()

    yield make
    for name in names:
        core.ALGORITHMS.pop(name, None)
