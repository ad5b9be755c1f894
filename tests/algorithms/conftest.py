"""Double precision in all tests of algorithms."""

import jax
import pytest

SINGLE = ("test_pairs", "test_published_defaults")


@pytest.fixture(autouse=True)
def double_precision(request):
    with jax.enable_x64(request.module.__name__.rpartition(".")[2] not in SINGLE):
        yield
