"""Scripts under test keep to one device, which compiles faster; `--devices=2` is tested as such.

Their runs leave pictures blank: drawing them would be a fifth of these tests' time. `drawing` is
for tests of the pictures' files.
"""

import contextlib

import pytest

from experiments.cli import devices
from experiments.outputs import run_files
from fedjax_pfl.data.atomic_files import atomic_write

DRAW = run_files.write_picture


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
