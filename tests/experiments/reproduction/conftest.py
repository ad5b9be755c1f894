"""Tables name presets and files of the repository."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[3])
