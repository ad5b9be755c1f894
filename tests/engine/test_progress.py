"""What people who wait see: a line of text, and a picture that is drawn again."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import progress as engine_progress
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils.metric_names import ACCURACY


def progress(number, rounds=3):
    """A progress whose result has one seed, scored in every round."""
    result = SimpleNamespace(
        eval_rounds=np.arange(1, number + 1), is_scored=True, num_settings=1,
        measure=lambda: ACCURACY, curve=lambda model, split: np.full((1, 1, number), 0.5),
    )  # fmt: skip
    return pfl.Progress(number, rounds, 0.5, 2.0 * number, number - 1, lambda: result)


@pytest.fixture
def kernel(monkeypatch):
    """A notebook; the pictures that it shows, in order: a name for each new one."""
    shown = []

    class Handle:
        def update(self, image):
            shown.append(("again", image))

    def display(image, display_id):
        shown.append(("new", image))
        return Handle()

    package, part = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=True)
    part.display, part.Image = display, lambda data, format: data
    package.display, package.version_info = part, (9, 0)  # which matplotlib asks for
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return shown


def test_a_line_says_first_that_it_compiles(capsys):
    """In a file: at once, and at the end; what is between comes too soon."""
    (line,) = engine_progress.shown(True, "fedavg")
    assert capsys.readouterr().out == "fedavg: compiling\n"
    for number in (1, 2, 3):
        line.on_round_end(progress(number))
    line.on_run_end()
    text = "fedavg: round 3/3, accuracy 50.00 %, 0.50 rounds/s, 0:00 left\n"
    assert capsys.readouterr().out == text


@pytest.mark.costly
def test_a_line_says_what_it_averages():
    told, federation = [], toy_federation(dtype="float32", validation_size=0)
    settings = {"learning_rate": (0.1, 0.2, 0.3)}
    local = pfl.make_algorithm("local")
    pfl.simulate(local, federation, 1, seeds=(0, 1), settings=settings, progress=told.append)
    assert " % (mean of 6 runs), " in str(told[-1])
    assert "runs)" not in str(progress(1))


def test_curves_grow_in_a_notebook(kernel, capsys):
    """Two simulations in one picture, the first of which is drawn anew each time."""
    curves = pfl.LiveCurves(every=0.0)
    for name in ("fedavg", "feddwa"):
        (callback,) = engine_progress.shown(curves.of(name), "unused")
        for number in (1, 3):
            callback.on_round_end(progress(number))
        callback.on_run_end()
    assert [what for what, _ in kernel] == ["new", "again", "again", "again"]
    assert all(image.startswith(b"\x89PNG") for _, image in kernel)
    assert kernel[1][1] != kernel[3][1]
    text = capsys.readouterr().out
    assert text.startswith("\rfedavg: compiling ") and text.endswith(" left" + " " * 17 + "\n")
    assert "\rfeddwa: round 3/3" in text and text.count("\n") == 2


def test_what_progress_may_be():
    assert engine_progress.shown(None, "fedavg") == engine_progress.shown(False, "fedavg") == []
    told = []
    (callback,) = engine_progress.shown(told.append, "fedavg")
    callback.on_round_end(progress(1))
    assert [one.round for one in told] == [1]
    with pytest.raises(pfl.InputError, match="progress must be a function of a Progress"):
        engine_progress.shown("yes", "fedavg")


@pytest.mark.costly
def test_the_last_round_of_a_run_that_stops_early_is_shown(capsys):
    curves, federation = pfl.LiveCurves(every=1e9), toy_federation(dtype="float32")
    stop = {"stop": lambda progress: progress.round == 3}
    algorithm = pfl.make_algorithm("local")
    made = pfl.simulate(algorithm, federation, 10, progress=curves.of("x"), **stop)
    assert curves.results["x"].rounds == made.rounds == 3
    pfl.simulate(algorithm, federation, 10, progress=True, **stop)
    assert "round 3/10" in capsys.readouterr().out.splitlines()[-1]
