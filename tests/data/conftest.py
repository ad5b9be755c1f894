"""A machine with little memory, and one without data sets."""

from pathlib import Path

import pytest

from fedjax_pfl.data import limits
from fedjax_pfl.data.sources import published


@pytest.fixture
def little_memory(monkeypatch):
    """A machine with a megabyte left."""
    monkeypatch.setattr(limits, "_SMALL", 0)
    monkeypatch.setattr(limits, "free", lambda: 10**6)


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path_factory, monkeypatch):
    """Neither prepared data sets nor cache files of whoever runs the tests."""
    place = tmp_path_factory.mktemp("machine")
    monkeypatch.setenv("TFDS_DATA_DIR", str(place / "tfds"))
    monkeypatch.setenv("FEDJAX_PFL_CACHE", str(place / "cache"))
    monkeypatch.setattr(published, "DEBIAN", Path("/nowhere/fashion-mnist"))
