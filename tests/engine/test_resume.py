"""A simulation that was stopped and resumed ends with the same bits as one that was not."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import arguments, runner
from fedjax_pfl.engine.checkpoints import Checkpoints
from tests.engine.simulated import OPTIONS, ROUNDS, assert_same, federation, stops_after, whole


@pytest.mark.parametrize("name", ["feddwa", pytest.param("scaffold", marks=pytest.mark.costly)])
def test_resume_is_bit_by_bit_the_uninterrupted_simulation(tmp_path, name):
    algorithm, stopped = pfl.make_algorithm(name), []
    while True:
        kept = Checkpoints(tmp_path, every_seconds=1e9)
        result = pfl.simulate(
            algorithm,
            federation(),
            ROUNDS,
            **OPTIONS,
            chunk_seconds=0,
            checkpoints=kept,
            stop=stops_after(2),
        )
        kept.close()
        if not result.stopped:
            break
        assert (result.stopped, result.rounds_asked) == ("asked", ROUNDS)
        stopped.append(result.rounds)
    assert stopped == [2, 4, 6]
    assert_same(result, whole(name))


@pytest.mark.costly
def test_a_continued_simulation_says_so_first(tmp_path, capsys):
    algorithm, told = pfl.make_algorithm("feddwa"), []
    for progress in (told.append, True):
        with contextlib.closing(Checkpoints(tmp_path, 1e9)) as kept:
            pfl.simulate(
                algorithm, federation(), ROUNDS, **OPTIONS | {"chunk": 1}, checkpoints=kept,
                stop=lambda progress: progress.round == 3, progress=progress
            )  # fmt: skip
    assert [(p.round, p.since) for p in told] == [(1, 0), (2, 1), (3, 2)]
    assert f"feddwa: continuing after round 3 of {ROUNDS}\n" in capsys.readouterr().out


def test_checkpoints_between_chunks_change_nothing(tmp_path):
    algorithm = pfl.make_algorithm("feddwa")
    kept = Checkpoints(tmp_path, every_seconds=0)
    result = pfl.simulate(
        algorithm, federation(), ROUNDS, **OPTIONS, chunk_seconds=0, checkpoints=kept
    )
    assert_same(result, whole("feddwa"))
    assert kept.latest().round == ROUNDS - 1


@pytest.mark.parametrize("keep", [0, 2.5, "2"])
def test_at_least_one_checkpoint_is_kept(keep, tmp_path):
    with pytest.raises(pfl.InputError, match="keep must be a whole number"):
        Checkpoints(tmp_path, keep=keep)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rounds": 6}, "rounds"),
        ({"seeds": (0, 4)}, "seeds and settings"),
        ({"eval_every": 1}, "evaluation"),
        ({"matrix_rounds": (1,)}, "kept matrices"),
        ({"algorithm": "fedavg"}, "algorithm"),
        ({"federation": {"learning_rate": 0.2}}, "data, partition or learning rate"),
        ({"federation": {"local_epochs": 2}}, "model or training"),
        ({"federation": {"seed": 1}}, "data, partition or learning rate"),
    ],
)
def test_another_simulation_is_refused(tmp_path, changes, said):
    def run(algorithm="feddwa", rounds=ROUNDS, stop=None, **options):
        fed = federation(**options.pop("federation", {}))
        kept = Checkpoints(tmp_path)
        options = OPTIONS | options
        return pfl.simulate(
            pfl.make_algorithm(algorithm), fed, rounds, checkpoints=kept, stop=stop, **options
        )

    assert run(stop=lambda _: True).rounds == 1
    with pytest.raises(pfl.InputError, match=f"are another simulation's: its {said}"):
        run(**changes)


def test_another_revision_is_refused(tmp_path, monkeypatch):
    shorter(tmp_path, 2, matrix_rounds=(1,), name="local")
    monkeypatch.setattr(pfl.core.ALGORITHMS["local"], "revision", 2)
    with pytest.raises(pfl.InputError, match="are another simulation's: its algorithm differ"):
        shorter(tmp_path, 2, matrix_rounds=(1,), name="local")


def shorter(folder, rounds, name="feddwa", **options):
    """Simulates fewer rounds, and closes its checkpoints."""
    kept_rounds = [number for number in OPTIONS["matrix_rounds"] if number <= rounds]
    options = OPTIONS | {"matrix_rounds": kept_rounds} | options
    with contextlib.closing(Checkpoints(folder, 1e9, extendable=True)) as kept:
        return pfl.simulate(
            pfl.make_algorithm(name), federation(), rounds, checkpoints=kept, **options
        )


def test_a_finished_simulation_is_lengthened_to_the_same_bits(tmp_path):
    """Its last round, which is scored as the last, is not; matrices that it kept stay."""
    first = shorter(tmp_path, 5, matrix_rounds=(1, 3))
    assert first.eval_rounds.tolist() == [2, 4, 5]
    assert Checkpoints(tmp_path).latest().round == 4
    allowed = r"after round 4, as the rounds until then are simulated already, got \[4\]"
    with pytest.raises(pfl.InputError, match=f"matrix_rounds must be {allowed}"):
        shorter(tmp_path, ROUNDS)
    longer = shorter(tmp_path, ROUNDS, matrix_rounds=(1, 6))
    assert longer.matrix_rounds.tolist() == [1, 3, 6]
    assert longer.eval_rounds.tolist() == [2, 4, 6, 7]
    wanted = whole("feddwa")
    same = [k for k, number in enumerate(wanted.matrix_rounds) if number in (1, 6)]
    for name, matrix in longer.matrices.items():
        np.testing.assert_array_equal(matrix[:, :, [0, 2]], wanted.matrices[name][:, :, same])
    nothing = {"matrices": {}, "matrix_rounds": np.zeros(0, int)}
    assert_same(replace(longer, **nothing), replace(wanted, **nothing))
    again = shorter(tmp_path, ROUNDS, matrix_rounds=(1, 6))  # from its own checkpoint
    assert_same(again, longer)


@pytest.mark.parametrize(
    ("name", "depends"),
    [("feddwa", False), ("lga", False), ("plga", True), ("waffle", True), ("apple", True)],
)
def test_which_rounds_depend_on_their_number(name, depends):
    program = arguments.checked_program(pfl.make_algorithm(name), federation(), ROUNDS)
    assert runner.depends_on_num_rounds(program, 4, 5) is depends


def test_rates_may_depend_on_the_number_of_rounds():
    for factor, depends in ((lambda t, n: 1 / (1 + t), False), (lambda t, n: 1 - t / n, True)):
        fed = federation(lr_schedule=factor)
        program = arguments.checked_program(pfl.make_algorithm("fedavg"), fed, ROUNDS)
        assert runner.depends_on_num_rounds(program, 4, 5) is depends


def test_rounds_that_depend_on_their_number_begin_again(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "depends_on_num_rounds", lambda *arguments: True)
    shorter(tmp_path, 5)
    with pytest.warns(UserWarning, match="feddwa begins with the first round again"):
        longer = shorter(tmp_path, ROUNDS)
    assert_same(longer, whole("feddwa"))


def test_rounds_that_depend_on_their_number_go_on_if_it_stays(monkeypatch):
    monkeypatch.setattr(runner, "depends_on_num_rounds", lambda *arguments: True)
    simulation, told = pfl.Simulation(pfl.make_algorithm("fedavg"), federation()), []
    assert simulation.run(2, chunk=1, stop=lambda _: True).rounds == 1
    assert simulation.run(2, chunk=1, progress=told.append).rounds == 2
    assert [(p.round, p.since) for p in told] == [(1, 1), (2, 1)]
