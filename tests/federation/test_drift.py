"""Concept drift: data of a round, training and scores against the reference, one program."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.drift import make_drift, schedule
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.results.concept_changes import changes
from fedjax_pfl.testing.toys import count_compilations, toy_federation
from fedjax_pfl.utils.metric_names import ACCURACY
from tests.algorithms.harness import Case, assert_losses, assert_models
from tests.references import drift, fedavg
from tests.references.network import loss_and_gradient

OPTIONS = {"rounds": [2, 4], "concepts": 2, "drifting": 3, "stagger": 1}
FLAGS = {"drift": "swap", "drift_rounds": [2, 4], "drift_share": 0.6, "drift_stagger": 1}
ROUNDS = 6


def owners_of(federation):
    data = federation.data
    owners = np.zeros(len(data.labels), int)
    for name in ("train", "test", "validation"):
        part = data.split(name)
        for i in range(federation.num_clients):
            owners[np.asarray(part.index)[int(part.offset[i]) :][: int(part.size[i])]] = i
    return owners


@pytest.mark.costly
def test_fedavg_trains_and_is_scored_on_the_concept_of_the_round():
    with jax.enable_x64(True):
        case = Case(ROUNDS, participation=0.6, **FLAGS)
        plain, owners = np.array(case.y), owners_of(case.federation)
        states, records = case.run_rounds(pfl.make_algorithm("fedavg"))
        model, batches = case.initial(), case.batches()
        for t in range(ROUNDS):
            case.y = drift.labels_in_round(plain, owners, t, **OPTIONS)
            setting = case.setting(
                initial=model,
                rounds=1,
                cohorts=[case.cohorts[t]],
                batches=[batches[t]],
                learning_rate=[case.rates[t]],
            )
            model = fedavg.run(setting)[0]["global"]
            state, record = states[t + 1], records[t]
            assert_models(jax.tree.map(lambda x: x[None], state.server), [model], "global")
            assert_losses(record, case, "personalized", [model] * 5)
            expected = [drift.concept(i, t, *OPTIONS.values()) for i in range(5)]
            np.testing.assert_array_equal(record["clients"]["concept"], expected)
            before = []  # in each client's phase before
            for i in range(5):
                changes = [first + i for first in (2, 4) if i < 3 and first + i <= t + 1]
                at = case.samples(i, "test")
                if not changes or not len(at):
                    before.append(np.nan)
                    continue
                y = drift.labels_in_round(plain, owners, changes[-1] - 2, **OPTIONS)
                before.append(loss_and_gradient(model, case.x[at], y[at])[0])
            previous = record["scores"]["personalized/previous/loss"]
            np.testing.assert_allclose(previous, before, 1e-9, 1e-9)


def test_class_counts_and_labels_of_a_round():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (4, 6))
    label_map = np.stack([rng.permutation(6) for _ in range(4)])
    starts, concepts = schedule(4, [3, 5, 9], 3, 0.75, 2)
    made = make_drift("swap", starts, concepts, counts, label_map, None)
    for t in range(20):
        now = made.fields(made.phase(t))
        for i in range(4):
            k = drift.concept(i, t, [3, 5, 9], 3, 3, 2)
            pair = {2 * k - 2: 2 * k - 1, 2 * k - 1: 2 * k - 2} if k else {}
            wanted = [pair.get(y, y) for y in label_map[i].tolist()]
            assert now["label_map"][i].tolist() == wanted, (t, i)
            held = [counts[i][pair.get(y, y)] for y in range(6)]
            assert now["class_counts"][i].tolist() == held
    turned = make_drift("rotate", starts, concepts, counts, label_map, np.array([3, 0, 1, 2]))
    assert turned.fields(turned.phase(5))["turns"].tolist() == [5 % 4, 1, 1, 2]
    np.testing.assert_array_equal(turned.fields(turned.phase(5))["label_map"], label_map)


def pictures(count=48):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (count, 3, 3, 1)).astype(np.uint8)
    y = np.arange(count) % 3
    dataset = pfl.dataset_from_arrays("pictures", x, y)
    return dataset, pfl.make_partition("iid", dataset, num_clients=4, seed=0)


def test_images_turn_from_a_round_on():
    dataset, partition = pictures()
    federation = pfl.federate(
        dataset, partition, model="mlp", drift="rotate", drift_rounds=[3], drift_stagger=2
    )
    (note,) = federation.notes
    assert note == "concept drift (rotate) from round 3 on, one client every 2 rounds"
    data, held = federation.data, partition.client("test", 1)
    for t, turns in ((0, 0), (3, 0), (4, 1), (9, 1)):
        now = data.at_round(t)
        at = np.arange(len(held))
        batch = now.fetch(now.test, 1, at, at >= 0, "float32").inputs
        wanted = np.rot90(dataset.train_x[held], turns, axes=(1, 2)).astype(np.float32)
        np.testing.assert_allclose(
            batch, wanted * np.asarray(data.scale) + np.asarray(data.shift), 1e-6
        )


@pytest.mark.costly
def test_one_program_for_all_phases_of_drift():
    federation = toy_federation(dtype="float32", **FLAGS)
    algorithm, options = pfl.make_algorithm("ditto"), {"rounds": 6, "chunk": 3}
    whole = pfl.simulate(algorithm, federation, **options)
    # Phases are arguments: other rounds need no other program.
    later = toy_federation(dtype="float32", **FLAGS | {"drift_rounds": [3, 4]})
    other = replace(federation, data=later.data)
    with count_compilations() as compiled:
        moved = pfl.simulate(algorithm, other, **options)
    assert compiled == []
    assert (moved.clients["concept"] != whole.clients["concept"]).any()


@pytest.mark.costly
def test_changes_of_a_result():
    federation = toy_federation(
        (12, 9, 11, 10), (6, 5, 7, 4), dtype="float32", drift="swap", drift_rounds=[4, 7],
        drift_share=0.75, drift_stagger=1, validation_size=0,
    )  # fmt: skip
    algorithm = pfl.make_algorithm("fedavg")
    result = pfl.simulate(algorithm, federation, rounds=11, seeds=(0, 1), eval_every=2)
    found = result.changes()
    assert [one.number for one in found] == [1, 2] and [one.clients for one in found] == [3, 3]
    scores = result.accuracy()[:, 0].astype(float)
    previous = result.accuracy(split="previous")[:, 0]
    for one, (first, after_that) in zip(found, ((3, 6), (6, 11)), strict=True):
        for s in range(2):
            parts, back = [], []
            for i in range(3):
                stop = min(after_that + i, 11) if after_that < 11 else 11
                part = drift.change(scores[s, :, i], result.eval_rounds, first + i, stop)
                parts.append(part)
                last = np.flatnonzero(result.eval_rounds <= stop)[-1]
                back.append(previous[s, last, i])
            before, after, end, _ = np.mean(parts, axis=0)
            assert (one.before[s], one.after[s]) == pytest.approx((before, after))
            assert one.end[s] == pytest.approx(end)
            assert one.backward_transfer[s] == pytest.approx(np.mean(back) - before)
    entries = result.summary()["changes"]
    assert [one["number"] for one in entries] == [1, 2]
    assert entries[0]["after"] == pytest.approx(found[0].after.mean())
    with pytest.raises(pfl.InputError, match="No concept drift in this result"):
        plain = toy_federation(dtype="float32")
        pfl.simulate(algorithm, plain, rounds=1).changes()


def test_rounds_to_recover():
    scores = np.array([0.8, 0.2, 0.6, 0.73, 0.75, 0.3, 0.3, 0.4])

    shaped = {split: (scores - less)[None, None, :, None] for split, less in
              (("test", 0), ("previous", 0.1))}  # fmt: skip
    made = SimpleNamespace(
        clients={"concept": np.array([0, 1, 1, 1, 1, 0, 0, 0])[None, None, :, None]},
        eval_rounds=np.arange(1, 9),
        values=lambda model, split="test": shaped[split],
        measure=lambda: ACCURACY,
    )
    first, second = changes(made)
    assert first.rounds_to_recover == 4  # 0.2 + 0.9 * 0.6 = 0.74
    assert second.rounds_to_recover == np.inf
    assert drift.change(scores, range(1, 9), 1, 5)[3] == 4
    assert first.means()["rounds_to_recover"] == 4 and second.means()["rounds_to_recover"] is None
    assert first.backward_transfer == pytest.approx(0.65 - 0.8)


@pytest.mark.costly
def test_a_concept_without_scores_is_compared_with_none():
    """The round scored before its end may be of the concept before."""
    federation = toy_federation(
        dtype="float32", drift="swap", drift_rounds=[6, 8], validation_size=0
    )
    algorithm = pfl.make_algorithm("local")
    assert [c.number for c in pfl.simulate(algorithm, federation, 12, eval_every=5).changes()] == []
    found = pfl.simulate(algorithm, federation, 12, eval_every=1).changes()
    assert [one.number for one in found] == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drift": "swaps"}, "Did you mean 'swap'"),
        ({"drift": "swap"}, r"needs drift_rounds, such as \[20, 40\]"),
        ({"drift_rounds": [3]}, "drift_rounds must be absent without drift"),
        ({"drift_rounds": np.array([3, 5])}, "drift_rounds must be absent without drift"),
        ({"drift": "swap", "drift_rounds": 5}, "drift_rounds must be a list such as"),
        ({"drift_share": 0.5}, "drift_share must be absent without drift"),
        ({"drift": "swap", "drift_rounds": [1]}, "ascending rounds from 2 on"),
        ({"drift": "swap", "drift_rounds": [5, 5]}, "ascending rounds from 2 on"),
        ({"drift": "swap", "drift_rounds": ["x"]}, "round of drift must be a whole number"),
        ({"drift": "swap", "drift_rounds": [3, 4], "drift_concepts": 3}, "at most 2 with 3 "),
        ({"drift": "swap", "drift_rounds": [3], "drift_concepts": 3}, "one more than drift_rounds"),
        ({"drift": "swap", "drift_rounds": [3], "drift_concepts": 1}, "at least 2"),
        ({"drift": "rotate", "drift_rounds": [3]}, "sample to rotate must be that of images"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(pfl.InputError, match=message):
        toy_federation(dtype="float32", **options)


def test_new_clients_and_cached_features_are_refused():
    drifting = toy_federation(dtype="float32", **FLAGS)
    with pytest.raises(pfl.InputError, match="new_clients must be 0 with concept drift"):
        split_new_clients(drifting, 1)
    regression = pfl.dataset_from_arrays(
        "r", np.zeros((8, 2)), np.zeros((8, 1), np.float32), task="regression"
    )
    dealt = pfl.make_partition("iid", regression, num_clients=2, seed=0)
    with pytest.raises(pfl.InputError, match="drift='swap' needs classes"):
        pfl.federate(regression, dealt, model="mlp", drift="swap", drift_rounds=[2])
    dataset, partition = pictures()
    with pytest.raises(pfl.InputError, match="at most 4 by quarter turns"):
        options = {"drift_rounds": [2, 3, 4, 5, 6], "drift_concepts": 5}
        pfl.federate(dataset, partition, model="mlp", drift="rotate", **options)


def test_a_departed_client_is_not_in_the_backward_transfer():
    scores = np.array([[0.8, 0.4], [0.6, 0.3], [0.6, np.nan]])
    made = SimpleNamespace(
        clients={"concept": np.array([[0, 0], [1, 1], [1, 1]])[None, None]},
        eval_rounds=np.arange(1, 4),
        values=lambda model, split="test": (scores - 0.1 * (split != "test"))[None, None],
        measure=lambda: ACCURACY,
    )
    (change,) = changes(made)
    assert change.clients == 2 and change.backward_transfer == pytest.approx(0.5 - 0.8)
