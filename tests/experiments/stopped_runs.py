"""What the tests of commands share: stopping runs midway, and comparing their folders."""

import contextlib
import os

import numpy as np
import pytest

from experiments.cli import flags, identity, run_folder, simulating


@contextlib.contextmanager
def watching(act):
    """A context in which commands show their progress to `act(algorithm, progress)`, and the names
    under which they do."""
    names = []

    class Watched:
        def __init__(self, name):
            self.name = name
            names.append(name)

        def on_round_end(self, progress):
            act(self.name, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulating, "Line", Watched)
        yield names


@contextlib.contextmanager
def killing(name, after, number):
    """A context in which this process gets a signal after so many rounds of an algorithm."""

    def act(algorithm, progress):
        if algorithm == name and progress.round >= after:
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patch, watching(act):
        patch.setattr(simulating, "LATE", 300.0)  # else a slow machine ends this process
        yield


def assert_same_arrays(folder, other, algorithms, files=("result.npz", "models.npz")):
    """The same arrays in both folders, to the bit; a file that one lacks, the other lacks too."""
    for path in (f"{name}/{file}" for name in algorithms for file in files):
        assert (folder / path).exists() == (other / path).exists(), path
        if (other / path).exists():
            with np.load(folder / path) as ours, np.load(other / path) as theirs:
                assert sorted(ours.files) == sorted(theirs.files)
                for key in theirs.files:
                    np.testing.assert_array_equal(ours[key], theirs[key], err_msg=f"{path} {key}")


def default_folder(words):
    """The folder that a command of these words writes to, its data aside."""
    config = flags.parse(words)
    return run_folder.output_folder(config, identity.run_identity(config))
