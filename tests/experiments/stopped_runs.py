"""What the tests of commands share: stopping runs midway, and comparing their folders."""

import contextlib
import os

import numpy as np
import pytest

from experiments.cli import console, flags, identity, run_folder


class Display:
    """A progress display that calls `act(algorithm, progress)` after each chunk of rounds."""

    def __init__(self, act):
        self.act, self.names = act, []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def algorithm(self, name, rounds):
        self.names.append(name)
        return lambda progress: self.act(name, progress)


@contextlib.contextmanager
def watching(act):
    """A context in which commands show their progress to `act(algorithm, progress)`."""
    display = Display(act)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "progress_display", lambda _: display)
        yield display


def killing(name, after, number):
    """A context in which this process gets a signal after so many rounds of an algorithm."""

    def act(algorithm, progress):
        if algorithm == name and progress.round >= after:
            os.kill(os.getpid(), number)

    return watching(act)


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
