"""Scripts under test keep to one device, which compiles faster; `--devices=2` is tested as such.

Their runs leave pictures blank: drawing them would be a fifth of these tests' time. `drawing` is
for tests of the pictures' files.
"""

import contextlib
from pathlib import Path

import pytest

from experiments.cli import data_flags, devices
from experiments.outputs import run_files
from experiments.reproduction import datasets
from fedjax_pfl.data.atomic_files import atomic_write
from fedjax_pfl.data.sources.source_registry import DATASETS, Source

DRAW = run_files.write_picture
# Tests of finished runs that are in the quick suite although making the run takes seconds.
QUICK = (
    "test_run.py::",
    "test_resume.py::test_signal_and_resume[2]",
    "test_sweep.py::test_ranking_and_chosen_flags",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests of the fixture `finished`, which runs whole commands, as costly."""
    for item in items:
        ours = Path(__file__).parent in item.path.parents
        quick = any(name in item.nodeid for name in QUICK)
        if ours and "finished" in item.fixturenames and not quick:
            item.add_marker(pytest.mark.costly)


@pytest.fixture
def blank_data_sets(monkeypatch):
    """Blank data sets of the right shapes and classes under the names of the real ones.

    The fixture is a list of pairs (max_tokens, max_length) of those that are loaded.
    """
    loaded = []
    for name, kind in datasets.KINDS.items():
        # Samples of a class: enough for 100 clients where there are few classes, little to move.
        most = {10: 1200, 4: 2000, 200: 120}.get(len(kind.train), 200)

        def load(data_dir, max_tokens=32_000, max_length=200, name=name, most=most):
            loaded.append((max_tokens, max_length))
            return datasets.blank(name, most, most // 5)

        monkeypatch.setitem(DATASETS, name, Source("blank", load))
    data_flags.last_loaded.cache_clear()
    yield loaded
    data_flags.last_loaded.cache_clear()


def blank(path, figure):
    with atomic_write(path) as part:
        part.write_bytes(b"blank")


@contextlib.contextmanager
def writing_pictures(write):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_files, "write_picture", write)
        yield


def drawing():
    """A context in which the pictures of runs and sweeps are drawn."""
    return writing_pictures(DRAW)


@pytest.fixture(scope="session", autouse=True)
def one_device():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_start", lambda count: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def blank_pictures():
    with writing_pictures(blank):
        yield
