"""Robust rules in rounds: they keep attackers out, remember, and follow a trusted client."""

from functools import cache

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.testing.toys import run_rounds, toy_federation
from tests.core.upload_rounds import flat, notes_uploads, run, without_notes
from tests.references.robust import fltrust, foolsgold

pytestmark = pytest.mark.usefixtures("double_precision")


MEANS = [("fedavg", "krum"), ("cwfedavg", "trimmed_mean"), ("ifca", "median"), ("cfl", "median")]
SIZES, TESTS = (7, 3, 6, 10, 4, 5, 8), (2,) * 7


@pytest.mark.costly
@pytest.mark.parametrize(("name", "rule"), MEANS)
def test_rules_keep_attackers_out(name, rule):
    """An update of a million times its size moves benign clients' models only without a rule."""
    worst = []
    for aggregator in (rule, "none"):
        federation = toy_federation(
            SIZES, attack="scale", attack_options={"factor": 1e6}, attackers=[3],
            aggregator=aggregator, test_sizes=TESTS, participation=0.75,
        )  # fmt: skip
        result = pfl.simulate(pfl.make_algorithm(name), federation, rounds=3)
        losses = np.delete(result.scores["personalized/test/loss"][0, 0, -1], 3)
        worst.append(np.nanmax(losses))
    assert worst[0] < 50 < 1e3 < worst[1]


def foolsgold_rounds(factor):
    """Return (states, records) of rounds in which client 1's update is `factor` times its own."""
    federation = without_notes(
        SIZES, attack="scale", attack_options={"factor": factor}, attackers=[1],
        aggregator="foolsgold", test_sizes=TESTS, participation=0.75, dtype="float32",
    )  # fmt: skip
    return run_rounds(notes_uploads(), federation, 4, scored=())


@pytest.mark.costly
def test_foolsgold_sums_the_updates_of_all_rounds():
    states, records = foolsgold_rounds(2.0)
    total = np.zeros((7, 43), np.float32)
    for before, after, record in zip(states, states[1:], records, strict=False):
        there = np.flatnonzero(record["up"].any(axis=1))
        total[there] += flat(after.own.sent, 7)[there] - flat(before.own.server)
        np.testing.assert_allclose(flat(after.history, 7), total, 1e-5, 1e-6)
    wanted = np.zeros(7)
    wanted[there] = foolsgold(total[there])
    np.testing.assert_allclose(records[-1]["matrices"]["mixing"][0], wanted, atol=1e-4)


def test_foolsgold_forgets_updates_that_are_not_finite():
    history = flat(foolsgold_rounds(1e38)[0][-1].history, 7)  # whose squares overflow
    assert np.isfinite(history).all() and not history[1].any() and history[[0, 2]].any(1).all()


@pytest.mark.costly
def test_fltrust_follows_the_trusted_client():
    """Against sign flips the others count by their cosine to it; without it nothing moves."""
    options = {
        "attack": "sign_flip", "attackers": [3], "aggregator": "fltrust", "test_sizes": TESTS,
        "aggregator_options": {"root": 2}, "participation": 0.75,
    }  # fmt: skip
    states, records = run_rounds(notes_uploads(), toy_federation(SIZES, **options), 6, scored=())
    seen = set()
    for before, after, record in zip(states[:-1], states[1:], records, strict=True):
        there, old = np.flatnonzero(record["up"].any(axis=1)), flat(before.server)
        moved, sent = flat(after.server) - old, flat(after.sent, 7) - old
        seen.add(2 in there)
        if 2 not in there:
            assert not moved.any()
            continue
        others = [k for k in there if k != 2]
        np.testing.assert_allclose(moved, fltrust(sent[others], sent[2]), atol=1e-12)
    assert seen == {True, False}


REMEMBERS = {  # momentum of each client, and what the attackers copy
    "momentum": 0.9, "keep_optimizer_state": True, "local_steps": 1, "attack": "mimic",
    "attackers": [1], "sampling": "poisson", "participation": 0.4,
}  # fmt: skip


def centred(radius):
    options = {"radius": radius, "steps": 2, "keep_centre": True}
    return run(16, aggregator="cclip", aggregator_options=options, **REMEMBERS)


@cache
def remembering():
    """The rounds without a rule."""
    return run(16, **REMEMBERS)


@pytest.mark.costly
def test_centred_clipping_begins_at_the_last_update():
    """v <- v + mean clip(x - v, radius), with v that of the last round with members."""
    centre, counts = 0.0, []
    for before, _, sent, after, present, record in centred(0.05):
        counts.append(len(present))
        x, sizes = sent[present] - before, np.array([7, 3, 6, 10, 4])[present]
        if not len(present):
            np.testing.assert_array_equal(after, before)
            continue
        for _ in range(2):
            moves = x - centre
            norms = np.linalg.norm(moves, axis=1, keepdims=True)
            centre = centre + (sizes / sizes.sum()) @ (moves * np.minimum(1, 0.05 / norms))
        np.testing.assert_allclose(after, before + centre, atol=1e-8)
        assert record["matrices"]["mixing"][0].sum() < 1  # the rest is the centre's
    assert 0 in counts[1:-1] and max(counts) > 2


@pytest.mark.costly
def test_rules_that_remember_go_with_momentum_that_is_kept():
    """With a wide radius, centred clipping that begins at the last update is the mean."""
    for ours, plain in zip(centred(1e6), remembering(), strict=True):
        np.testing.assert_allclose(ours[3], plain[3], atol=1e-9)
    checked_program(notes_uploads(), toy_federation(**REMEMBERS, aggregator="foolsgold"), 1)


def test_mimic_copies_one_client_to_the_end():
    """And another one where that is absent."""
    copied = []
    for before, trained, sent, _, present, _ in remembering():
        honest = [k for k in present if k != 1]
        if 1 in present and honest:
            gaps = np.linalg.norm(sent[1] - trained[honest], axis=1)
            copied.append((honest, honest[np.argmin(gaps)]))
            assert gaps.min() < 1e-12 and np.abs(sent - before).max() > 0
    target = copied[0][1]
    assert [other == target for _, other in copied] == [target in honest for honest, _ in copied]


MATRICES = ("feddwa", "fedamp", "heurfedamp", "pfedla", "heurpfedla", "spfl", "spfl_w")


@pytest.mark.costly
@pytest.mark.parametrize("name", MATRICES)
def test_self_clip_of_a_tiny_radius_leaves_each_client_its_own_model(name):
    own = []
    for radius in (1e-9, 1e9):
        matrix = next(iter(self_clipped(name, radius)[-1]["matrices"].values()))
        own.append(np.diagonal(matrix, axis1=-2, axis2=-1))
    np.testing.assert_allclose(own[0], 1, atol=1e-5)
    assert own[1].min() < 0.99


@cache
def self_clipped(name, radius):
    """Records of three rounds with two attackers."""
    federation = without_notes(
        SIZES, aggregator="self_clip", aggregator_options={"radius": radius}, test_sizes=TESTS,
        participation=0.75, attack="gaussian", attackers=[1, 3],
    )  # fmt: skip
    return run_rounds(pfl.make_algorithm(name), federation, 3, scored=())[1]


def test_benign_rows_give_attackers_weight():
    """The mean over the rows of benign members, of a matrix with attackers in rows and columns."""
    for record in self_clipped("feddwa", 1e9):
        matrix = record["matrices"]["mixing"]
        members = np.flatnonzero(record["clients"]["participated"])
        benign = [k for k in members if k not in (1, 3)]
        wanted = matrix[np.ix_(benign, [1, 3])].sum(1) / matrix[benign].sum(1)
        np.testing.assert_allclose(record["scalars"]["attackers_weight"], wanted.mean(), rtol=1e-5)
