"""Rounds that end early: by patience, or because somebody asked; and what is known meanwhile."""

from functools import cache, partial

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.early_stopping import WATCHED, earliest_stop
from fedjax_pfl.testing.toys import toy_federation

ROUNDS, SEEDS = 40, (0, 3)
OPTIONS = {"seeds": SEEDS, "eval_every": 2, "chunk": 4}
NAME = "personalized/test/accuracy"


def simulated(rounds=ROUNDS, name="fedavg", **options):
    federation = toy_federation(dtype="float32", participation=0.6)
    return pfl.simulate(pfl.make_algorithm(name), federation, rounds, **(OPTIONS | options))


@cache
def patient():
    return simulated(patience=4)


def test_patience_ends_at_a_round_that_the_measurements_alone_decide():
    result = patient()
    assert (result.stopped, result.rounds_asked) == ("patience", ROUNDS)
    curves = result.curve("personalized", "validation")[:, 0]  # [S, E]
    best = result.eval_rounds[np.argmax(curves, axis=1)]
    assert result.rounds == best.max() + 4 < ROUNDS
    other = simulated(patience=4, chunk_seconds=0)  # chunks of one round
    assert other.rounds == result.rounds
    for name in result.scores:
        np.testing.assert_array_equal(other.scores[name], result.scores[name])
    text = f"fedavg: stopped after round {result.rounds} of {ROUNDS}: its validation accuracy had"
    assert text in result.table()
    assert result.final.models()["global"].model["params"]


def test_patience_gives_the_simulation_of_so_many_rounds(tmp_path):
    """And a saved result is read again."""
    result = patient()
    short = simulated(result.rounds)
    for name in result.scores:
        np.testing.assert_array_equal(short.scores[name], result.scores[name])
    np.testing.assert_array_equal(short.copies_up, result.copies_up)
    result.save(tmp_path)
    again = pfl.Result.load(tmp_path)
    assert (again.stopped, again.rounds_asked) == (result.stopped, ROUNDS)


@pytest.mark.parametrize(
    ("rounds", "accuracy", "wanted"),
    [
        ([], np.zeros((2, 0)), 4),
        ([2], [[0.5], [0.5]], 6),
        ([2, 4, 6], [[0.5, 0.5, 0.5], [0.1, 0.2, 0.2]], 8),  # a tie is not a new best
        ([2, 4], [[np.nan, np.nan], [0.1, 0.2]], 8),
        ([2, 4, 6, 8], [[0.1, 0.2, 0.3, 0.4]], 10),  # never after the last
        ([2, 4, 6, 8], [[0.2, 0.1, 0.1, 0.3]], 6),  # it had ended before a later best
    ],
)
def test_earliest_stop(rounds, accuracy, wanted):
    assert earliest_stop(np.array(rounds, int), np.array(accuracy), 3, 2, 10) == wanted


def test_less_patience_than_a_checkpoint_begins_again(tmp_path):
    """It would have ended before the checkpoint's round."""
    kept = pfl.Checkpoints(tmp_path, extendable=True)
    simulated(patient().rounds + 6, checkpoints=kept)
    text = "begins with the first round again: with patience 4 it ends after round "
    with pytest.warns(UserWarning, match=f"{text}{patient().rounds}"):
        less = simulated(patient().rounds + 6, checkpoints=kept, patience=4)
    assert (less.stopped, less.rounds) == ("patience", patient().rounds)
    for name in less.scores:
        np.testing.assert_array_equal(less.scores[name], patient().scores[name])


def test_patience_refusals():
    with pytest.raises(pfl.InputError, match="no client has validation samples"):
        federation = toy_federation(validation_size=0, dtype="float32")
        pfl.Simulation(pfl.make_algorithm("local"), federation).check(patience=2)
    with pytest.raises(pfl.InputError, match="which arrivals or departures change"):
        federation = toy_federation(dtype="float32", arrivals={1: 2})
        pfl.Simulation(pfl.make_algorithm("local"), federation).check(patience=2)
    with pytest.raises(pfl.InputError, match="patience must be a whole number of at least 1"):
        simulated(patience=0)
    with pytest.raises(pfl.InputError, match="fedbabu is scored after 5 local epochs"):
        simulated(patience=2, name="fedbabu")


def test_every_chunk_shows_all_measurements_so_far():
    seen = []

    def progress(chunk):
        seen.append((chunk.since, chunk.round, chunk.result()))

    whole = simulated(5, progress=progress, chunk_seconds=0)
    assert [(since, done) for since, done, _ in seen] == [(k, k + 1) for k in range(5)]
    for _, done, result in seen:
        assert result.rounds == done and result.final is None
        scored = [r for r in (2, 4, 5) if r <= done]
        assert result.eval_rounds.tolist() == scored
        for name in (NAME, f"{WATCHED}/accuracy"):
            part = whole.scores[name][:, :, : len(scored)]
            np.testing.assert_array_equal(result.scores[name], part)


def test_a_partial_result():
    part = simulated(5, stop=lambda progress: True, chunk_seconds=0)
    assert (part.rounds, part.stopped, part.rounds_asked) == (1, "asked", 5)
    assert "none was scored yet" in repr(part)
    with pytest.raises(pfl.InputError, match="No round of this result was scored: it ends after"):
        part.table()
    count = iter(range(3))
    part = simulated(5, stop=lambda progress: next(count) == 2, chunk_seconds=0)
    text = "stopped after round 3 of 5: on request, and scored last after round 2"
    assert part.rounds == 3 and text in part.table()


@pytest.mark.costly
def test_models_of_a_stopped_run_are_of_its_last_round():
    """At the rate that the schedule of all rounds has there."""
    federation = toy_federation(dtype="float32")
    algorithm = pfl.make_algorithm("fedavg_ft", {"fine_tune_epochs": 1})

    def models(schedule, rounds, **options):
        own = federation.with_training(lr_schedule=schedule)
        return pfl.simulate(algorithm, own, rounds, seeds=(0,), **options).final.models([1])

    count = iter(range(3))
    part = models("cosine", 20, stop=lambda progress: next(count) == 2, chunk_seconds=0)
    whole = models(lambda t, _: pfl.training.LR_SCHEDULES["cosine"](t, 20), 3)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), part, whole)
