"""Clients that arrive and leave: cohorts, training and scores."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.runs import remarks
from fedjax_pfl.federation.participation_options import ParticipationOptions
from fedjax_pfl.testing.toys import toy_federation, toy_for
from tests.algorithms.harness import Case, assert_models
from tests.references import fedavg

CHANGING = {"arrivals": {3: 3, 1: 2}, "departures": {0: 2, 1: 3}}  # rounds counted from 1
ROUNDS = 5


def there(i, t):
    first, last = CHANGING["arrivals"].get(i, 1), CHANGING["departures"].get(i, 99)
    return first <= t + 1 <= last


@pytest.mark.costly
@pytest.mark.parametrize("participation", [1.0, 0.8])
def test_only_clients_who_are_there_take_part_and_are_scored(participation):
    with jax.enable_x64(True):
        case = Case(ROUNDS, participation=participation, **CHANGING)
        for t, cohort in enumerate(case.cohorts):
            present = [i for i in range(5) if there(i, t)]
            assert set(cohort) <= set(present)
            assert len(cohort) == min(len(present), round(5 * participation))
        wanted = fedavg.run(case.setting())
        states, records = case.run_rounds(pfl.make_algorithm("fedavg"))
        for t, (state, record) in enumerate(zip(states[1:], records, strict=True)):
            server = jax.tree.map(lambda x: x[None], state.server)
            assert_models(server, [wanted[t]["global"]], "global")
            losses = case.test_losses([wanted[t]["global"]] * 5)
            losses[[i for i in range(5) if not there(i, t)]] = np.nan
            scored = record["scores"]["personalized/test/loss"]
            np.testing.assert_allclose(scored, losses, 1e-9, 1e-9)


@pytest.mark.costly
@pytest.mark.parametrize(
    "name", ["fedavg_async", "local", "pfedme", "spfl", "feddbe", "floco", "fedala", "ccvr"]
)
def test_absent_clients_do_nothing(name):
    """Those that are not there are no part of steps with all clients, either."""
    algorithm = pfl.make_algorithm(name)
    federation = toy_for(algorithm, dtype="float32", **CHANGING)
    result = pfl.simulate(algorithm, federation, rounds=ROUNDS)
    took_part = result.clients["participated"][0, 0]
    expected = [[there(i, t) for i in range(5)] for t in range(ROUNDS)]
    np.testing.assert_array_equal(took_part, expected)
    for values in (result.clients["local_steps"][..., None], result.copies_up, result.copies_down):
        assert not values[0, 0][~np.array(expected)].any()
    assert "2 clients arrive and 2 clients leave" in federation.notes[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arrivals": {9: 2}}, "arrival must be a client in 0..4, got 9"),
        ({"arrivals": {0: 0}}, "arrival of client 0 must be a round, counted from 1, got 0"),
        ({"arrivals": {0: 5}, "departures": {0: 4}}, "arrives in round 5 and leaves after round 4"),
        ({"arrivals": [3]}, "arrivals must be a dict"),
        ({"arrivals": {0: 2}, "stragglers": {1: 1}}, "Stragglers need the same clients in all"),
        (
            {"departures": {0: 2}, "batch_order": "partition"},
            "needs the same clients in all rounds",
        ),
        (
            {"departures": {0: 2}, "dp": "client", "dp_noise": 1.0, "dp_clip": 1.0},
            "a fixed set of clients",
        ),
    ],
)
def test_refusals(options, message):
    with pytest.raises(pfl.InputError, match=message):
        toy_federation(dtype="float32", **options)


@pytest.mark.costly
def test_a_sampled_cohort_prefers_who_is_there():
    part = ParticipationOptions(0.5, arrivals=dict.fromkeys(range(5), 3)).build(10)
    for t in range(6):
        cohort = part.cohort(jax.random.key(t), np.int32(t), np.arange(10, dtype=np.int32))
        rows = np.asarray(cohort.rows)[np.asarray(cohort.mask)]
        assert len(rows) == 5 and (t >= 2 or rows.min() >= 5)


@pytest.mark.parametrize(
    ("rounds", "never"),
    [(6, []), (4, ["leave", "change their concept"]), (2, ["arrive", "leave", "change"])],
)
def test_changes_after_the_last_round_are_noted(rounds, never):
    federation = toy_federation(
        dtype="float32", arrivals={1: 3}, departures={0: 5}, drift="swap", drift_rounds=[2, 5]
    )
    common, _ = remarks(pfl.make_algorithm("fedavg"), federation, {}, rounds)
    said = [one for one in common if one.endswith(f" after the last round, {rounds}")]
    assert all(
        one.startswith(f"some clients would {what}") for one, what in zip(said, never, strict=True)
    )
