"""Double precision in all tests of algorithms."""

import jax
import pytest

SINGLE = ("test_published_defaults",)


@pytest.fixture(autouse=True)
def double_precision(request):
    with jax.enable_x64(request.module.__name__.rpartition(".")[2] not in SINGLE):
        yield


def pytest_generate_tests(metafunc):
    """Gives the tests of `comparison` their cases."""
    if cases := getattr(metafunc.function, "cases", None):
        names, make = cases
        metafunc.parametrize(names, make(metafunc.config.getoption("matrix")))
