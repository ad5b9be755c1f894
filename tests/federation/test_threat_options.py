"""Byzantine clients of a federation: who they are, their samples, and the success of a backdoor."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.poisoning import Backdoor, LabelFlip, poison
from fedjax_pfl.engine.runs import remarks
from fedjax_pfl.federation.threat_options import ThreatOptions
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.uploads.attacks import Enlarge

IDS = np.array([4, 2, 9, 0, 7, 3, 5, 1])


@cache
def clients(count=5):
    """Images of bytes, eight training and four test images for each client."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, size=(12 * count, 6, 6, 1)).astype(np.uint8)
    y = rng.integers(0, 3, size=12 * count)
    split = 8 * count
    dataset = dataset_from_arrays("toy", x[:split], y[:split], x[split:], y[split:])
    train = [list(range(8 * k, 8 * k + 8)) for k in range(count)]
    tests = [list(range(split + 4 * k, split + 4 * k + 4)) for k in range(count)]
    return dataset, Partition.from_lists(train, tests)


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [("20%", [3, 9]), ("30%", [3, 9]), ("32%", [0, 3, 9]), ("1%", [3]), ("3, 9", [3, 9]),
     ([7, 7], [7]), (np.array([9, 3]), [3, 9]), (jnp.array([9, 3]), [3, 9]), ({9, 3}, [3, 9])],
)  # fmt: skip
def test_attackers_are_ids_or_a_rounded_share(chosen, ids):
    assert ThreatOptions(attackers=chosen).attackers_of(IDS).tolist() == ids


def test_a_backdoor_can_send_larger_updates():
    def sent(attack, **options):
        return ThreatOptions(attack=attack, attack_options=options, attackers="4").upload_attack()

    assert sent("backdoor", factor=4.0) == sent("dba", factor=4.0) == Enlarge(4.0)
    assert sent("backdoor") is sent("label_flip") is None
    with pytest.raises(pfl.InputError, match=r"factor of a backdoor must be other than 0.* got 0"):
        sent("dba", factor=0.0)


@cache
def enlarged():
    """A federation with a backdoor whose updates are twice as large."""
    options = {"attack": "backdoor", "attackers": "1", "attack_options": {"factor": 2.0, "size": 2}}
    return pfl.federate(*clients(), "softmax", learning_rate=0.1, **options)


def test_a_backdoors_notes_have_the_factor_of_their_row():
    fedavg, told = pfl.make_algorithm("fedavg"), "1 of 5 clients is Byzantine (backdoor, factor={}"
    _, single = remarks(fedavg, enlarged(), {"attack_factor": [2.0, 0.5]}, 3)
    assert all(told.format(one) in notes[0] for one, notes in zip((2, 0.5), single, strict=True))
    with pytest.raises(pfl.InputError, match=r"factor of a backdoor must be other than 0.* got 0"):
        pfl.Simulation(fedavg, enlarged(), settings={"attack_factor": [2.0, 0.0]}).check()


@pytest.mark.parametrize(
    ("attack", "options", "change"),
    [
        ("label_flip", {}, LabelFlip(3)),
        ("label_flip", {"how": "random", "seed": 2}, LabelFlip(3, "random", 2)),
        ("backdoor", {"target": 1, "size": 3}, Backdoor(1, size=3)),
        ("dba", {"target": 2}, Backdoor(2, distributed=True)),
    ],
)
def test_the_attackers_samples_are_poisoned(attack, options, change):
    """They are found by their ids: 1 and 3 are at places 2 and 0."""
    threat = ThreatOptions(attack=attack, attack_options=options, attackers="1,3")
    dataset, partition = threat.poisoned(*clients(), np.array([3, 0, 1, 4, 2]))
    wanted, places = poison(*clients(), [0, 2], change)
    for one, other in zip(dataset.pool(), wanted.pool(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [x.tolist() for x in partition.train.lists()] == [
        x.tolist() for x in places.train.lists()
    ]


def test_attackers_share_out_the_trigger():
    dataset, _ = clients()
    poisoned, places = poison(*clients(), [0, 2, 4], Backdoor(share=1.0, distributed=True))
    x, _ = poisoned.pool()
    bright = [(x[places.client("train", k)] == dataset.train_x.max()).all((0, 3))
              for k in (0, 2, 4)]  # fmt: skip
    corners = [np.argwhere(one).min(0).tolist() for one in bright]
    assert corners == [[2, 2], [2, 4], [4, 2]] and [one.sum() for one in bright] == [4] * 3


@pytest.mark.parametrize("attack", ["backdoor", "label_flip"])
@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"turns": np.full(5, 2)}, {}),
        ({"label_map": np.tile([1, 2, 0], (5, 1))}, {}),
        ({}, {"drift": "swap", "drift_rounds": [2]}),
    ],
)
def test_stored_samples_are_not_what_some_clients_see(attack, fields, options):
    dataset, partition = clients()
    options = {**options, "attack": attack, "attackers": "1"}
    with pytest.raises(pfl.InputError, match="can't be combined with drift, rotated clients"):
        pfl.federate(dataset, replace(partition, **fields), "softmax", **options)


@pytest.mark.costly
def test_validation_scores_of_clients_without_test_samples():
    sizes = {"test_sizes": (2, 3, 4, 2, 0), "validation_size": 2}
    federation = toy_federation(**sizes, dtype="float32", attack="sign_flip", attackers="1")
    result = pfl.simulate(pfl.make_algorithm("fedavg"), federation, rounds=1)
    tests, held_out = (result.scores[f"personalized/{name}/loss"][0, 0, -1]
                       for name in ("test", "validation"))  # fmt: skip
    assert np.flatnonzero(np.isnan(tests)).tolist() == [1, 4]
    assert np.flatnonzero(np.isnan(held_out)).tolist() == [1]


def test_success_is_of_samples_of_other_classes():
    threat = ThreatOptions(attack="backdoor", attack_options={"target": 2}, attackers="1")
    dataset, partition = clients()
    (metric,) = threat.metrics(dataset, partition)
    outputs = jax.nn.one_hot(jnp.array([2, 2, 0, 2, 2, 1]), 3)
    labels = jnp.array([0, 2, 1, 1, 0, 2])
    valid = jnp.array([True, True, True, True, False, True])
    np.testing.assert_allclose(metric.fn(outputs, labels, valid), 2 / 3)
    assert jnp.isnan(metric.fn(outputs, labels, labels == 2))
    x = metric.changes(jnp.zeros((2, 6, 6, 1), jnp.uint8))
    bright = dataset.train_x.max()
    assert (x[:, 2:, 2:] == bright).all() and x.sum() == 2 * 16 * int(bright)
    assert metric.better == "lower"
    assert not ThreatOptions(attack="label_flip", attackers="1").metrics(dataset, partition)


@pytest.mark.costly
def test_success_of_a_whole_run():
    """It is what the final model says of benign clients' test images with the trigger."""
    dataset, partition = clients()
    federation = pfl.federate(
        dataset, partition, "softmax", learning_rate=0.1, attack="backdoor", attackers="1",
        attack_options={"factor": 20.0, "share": 1.0},
    )  # fmt: skip
    result = pfl.simulate(pfl.make_algorithm("fedavg"), federation, rounds=3)
    found = result.scores["personalized/test/attack_success"][0, 0, -1]
    assert np.isnan(found[1]) and np.delete(found, 1).min() > 0.9
    honest = pfl.federate(dataset, partition, "softmax", learning_rate=0.1)
    plain = pfl.simulate(pfl.make_algorithm("fedavg"), honest, rounds=3)
    assert "personalized/test/attack_success" not in plain.scores
