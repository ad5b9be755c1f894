"""Objects that are called between the chunks of a run."""

from functools import partial

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.runner import processes
from fedjax_pfl.testing.toys import toy_federation

pytestmark = pytest.mark.costly

simulated = partial(pfl.simulate, pfl.make_algorithm("local"))


def federation():
    return toy_federation(dtype="float32", validation_size=0)


class Noted:
    """Notes its calls, and ends the rounds, or fails, after round `ends` or `fails`."""

    def __init__(self, ends=0, fails=0):
        self.ends, self.fails, self.calls = ends, fails, []

    def on_round_end(self, progress):
        self.calls.append((progress.since, progress.round))
        if progress.round == self.fails:
            raise KeyError("mine")
        return progress.round == self.ends

    def on_run_end(self):
        self.calls.append("end")


class Bare:
    """Has no `on_run_end`."""

    def on_round_end(self, progress):
        return progress.round == progress.rounds  # which is the end anyway


def test_callbacks_are_called_after_every_round_and_may_end_them():
    first, second = Noted(), Noted(ends=2)
    result = simulated(federation(), 4, callbacks=[first, Bare(), second])
    assert first.calls == second.calls == [(0, 1), (1, 2), "end"]
    assert (result.rounds, result.stopped) == (2, "asked")
    last = Noted()
    whole = simulated(federation(), 4, callbacks=[last, Bare()], chunk=2, chunk_seconds=100)
    assert last.calls == [(0, 1), (1, 2), (2, 4), "end"]  # the first chunk is of one round
    assert (whole.rounds, whole.stopped) == (4, "")


def test_an_error_ends_the_run_and_checkpoints_are_kept(tmp_path):
    checkpoints, failing = pfl.Checkpoints(tmp_path, every_seconds=0), Noted(fails=2)
    with pytest.raises(KeyError, match="mine") as caught:
        simulated(federation(), 3, callbacks=[failing], checkpoints=checkpoints)
    assert caught.traceback[-1].path.name == "test_callbacks.py"
    assert failing.calls == [(0, 1), (1, 2), "end"]
    again = Noted(ends=1)  # the call without a new round does not end them
    assert simulated(federation(), 3, callbacks=[again], checkpoints=checkpoints).rounds == 3
    assert again.calls == [(1, 1), (1, 2), (2, 3), "end"]
    checkpoints.close()


@pytest.mark.parametrize("theirs", [[True, None], [False, "KeyError: 'theirs'"]])
def test_all_processes_end_with_the_callback_of_one(monkeypatch, theirs):
    """What another process says is put beside what this one does."""

    def exchange(value):
        of_callbacks = isinstance(value, list) and isinstance(value[0], bool) and value[1] is None
        return [value, theirs] if of_callbacks else [value]

    monkeypatch.setattr(processes, "exchange", exchange)
    mine = Noted()
    run = partial(simulated, federation(), 3, callbacks=[mine])
    if theirs[0]:
        assert run().rounds == 1
    else:
        with pytest.raises(pfl.OutputError, match=r"process 1 has failed .* 'theirs'"):
            run()
    assert mine.calls == [(0, 1), "end"]
