"""Double precision, for modules that ask for it."""

import jax
import pytest


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield
