"""The federation of `small` as a fixture."""

import pytest

from tests.references.small import make_setting


@pytest.fixture
def setting():
    """Four clients of unequal size, each rich in a class of its own."""
    return make_setting()
