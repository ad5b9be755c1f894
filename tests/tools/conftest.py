"""Tools under test keep to one device, as commands do, and run in the repository's root."""

import pytest

from tests.docs.pages import ROOT
from tests.experiments.conftest import blank_data_sets, one_device  # noqa: F401 - fixtures


@pytest.fixture
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)
