"""Shift in features: who sees what, its file, and samples in training and scoring."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.corruptions import KINDS, corrupt
from fedjax_pfl.data.partitions.feature_shift import with_corruption
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.utils.errors import InputError

RNG = np.random.default_rng(0)


def images(shape=(4, 4, 1), count=40):
    x = RNG.integers(0, 256, size=(count, *shape)).astype(np.uint8)
    x.flat[:2] = 0, 255
    y = np.arange(count) % 3
    return pfl.dataset_from_arrays("images", x[:30], y[:30], x[30:], y[30:])


def dealt(dataset, clients=4):
    return pfl.make_partition("iid", dataset, num_clients=clients, seed=0)


def test_groups_have_equally_many_members():
    p = dealt(images(), 10)
    turned = pfl.data.shift_features(p, "rotate", 0)
    assert np.bincount(turned.turns).tolist() in ([3, 3, 2, 2], [3, 2, 3, 2], [2, 3, 2, 3])
    assert turned.options["feature_shift"] == "rotate"
    assert pfl.data.shift_features(p, "rotate", 1).hash() != turned.hash() != p.hash()
    half = pfl.data.shift_features(p, "rotate", 0, groups=2)
    assert np.bincount(half.turns).tolist() == [5, 0, 5]
    assert "quarter turns: [5 0 5 0]" in half.summary()


def test_fifty_clients_have_each_corruption_once():
    table = pfl.data.FEATURE_SHIFTS["corrupt"](100, np.random.default_rng(0))["corruption"]
    chosen = {tuple(row) for row in table.tolist()} - {(0, 0)}
    assert chosen == {(k, s) for k in range(1, 11) for s in range(1, 6)}
    assert (table[:, 0] > 0).sum() == 50
    p = pfl.data.shift_features(dealt(images()), "corrupt", 0, share=1, kind="fog", strength=2)
    assert (p.corruption == [KINDS.index("fog") + 1, 2]).all()
    assert "4 clients with corrupted images" in p.summary()


def test_a_file_repeats_the_shift(tmp_path):
    for kind in ("rotate", "corrupt"):
        p = pfl.data.shift_features(dealt(images()), kind, 0).split_validation(0.2, 0)
        p.save(tmp_path / f"{kind}.npz")
        again = Partition.load(tmp_path / f"{kind}.npz")
        assert again.hash() == p.hash()
        for name in ("turns", "corruption"):
            np.testing.assert_array_equal(getattr(again, name), getattr(p, name))


def test_only_the_clients_samples_are_corrupted():
    dataset = images((6, 6, 3))
    table = np.array([[0, 0], [1, 5], [8, 3], [0, 0]])
    p = replace(dealt(dataset), corruption=table)
    (old, _), (new, _) = dataset.pool(), with_corruption(dataset, p).pool()
    for client, (kind, strength) in enumerate(table):
        held = np.concatenate([p.client("train", client), p.client("test", client)])
        expected = old[held]
        if kind:
            made = corrupt(expected / 255, KINDS[kind - 1], strength, held)
            expected = np.rint(255 * made)
        np.testing.assert_array_equal(new[held], expected)
    plain = replace(p, corruption=np.zeros((4, 2), int))
    assert with_corruption(dataset, plain) is dataset
    floats = pfl.dataset_from_arrays("f", dataset.train_x / 50.0 - 1, dataset.train_y)
    q = replace(dealt(floats), corruption=table)
    changed = with_corruption(floats, q)
    assert changed.train_x.dtype == np.float32 and changed.train_x.min() >= -1
    assert (changed.train_x[q.client("train", 1)] != floats.train_x[q.client("train", 1)]).any()


@pytest.mark.parametrize("kind", ["shot_noise", "brightness"])
def test_images_beyond_the_training_range_keep_theirs(kind):
    train, test = np.full((6, 8, 8, 1), 100, np.uint8), np.zeros((2, 8, 8, 1), np.uint8)
    train[:, 0], test[:, 1] = 110, 250
    dataset = pfl.dataset_from_arrays("a", train, [0, 1] * 3, test, [0, 1])
    p = Partition.from_lists([[*range(6)]], [[6, 7]])
    p = pfl.data.shift_features(p, "corrupt", 0, share=1.0, kind=kind, strength=1)
    changed = with_corruption(dataset, p)
    assert changed.test_x[:, 1].min() >= 200 and changed.test_x[:, 2:].max() <= 15
    assert changed.train_x.min() >= 100 and changed.train_x.max() <= 110


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(4, 4, 1), (2, 6, 3)])
def test_turned_clients_train_and_are_scored_on_turned_images(shape):
    dataset = images(shape)
    groups = 4 if shape[0] == shape[1] else 2
    turned = pfl.data.shift_features(dealt(dataset), "rotate", 0, groups=groups)
    samples = dataset.pool()[0].copy()
    for client, times in enumerate(turned.turns):
        held = np.concatenate([turned.client("train", client), turned.client("test", client)])
        samples[held] = np.rot90(samples[held], times, axes=(1, 2))
    other = replace(dataset, train_x=samples[:30], test_x=samples[30:])
    results = []
    for data, partition in ((dataset, turned), (other, replace(turned, turns=None))):
        federation = pfl.federate(data, partition, model="mlp", local_epochs=1)
        results.append(pfl.simulate(pfl.make_algorithm("local"), federation, rounds=2))
    first, second = (one.scores["personalized/test/loss"] for one in results)
    np.testing.assert_array_equal(first, second)
    batch = pfl.federate(dataset, turned, model="mlp").data
    one = batch.fetch(batch.test, 1, np.arange(2), np.ones(2, bool), "float32")
    assert jax.tree.map(np.shape, one).inputs == (2, *shape)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda p: pfl.data.shift_features(p, "rotated", 0), "feature_shift.*rotate"),
        (lambda p: pfl.data.shift_features(p, "rotate", 0, groups=3), "groups .* 2 or 4, got 3"),
        (lambda p: pfl.data.shift_features(p, "rotate", 0, share=1), "Unknown option .*'share'"),
        (lambda p: pfl.data.shift_features(p, "corrupt", 0, share=2), "share .* a fraction"),
        (lambda p: pfl.data.shift_features(p, "corrupt", 0, kind="frost"), "kind of corruption"),
        (lambda p: pfl.data.shift_features(p, "corrupt", 0, strength=6), "a whole number in 0..5"),
        (lambda p: replace(p, turns=np.ones(4)), "Turns must be an array of whole numbers"),
        (lambda p: replace(p, turns=np.full(4, 4)), "Turns must be in 0..3"),
        (lambda p: replace(p, turns=np.zeros(3, int)), "Shape of the turns"),
        (lambda p: replace(p, corruption=[[11, 1]] * 4), "Corruption must be .* got .*11"),
        (lambda p: replace(p, corruption=[[1, 0]] * 4), "Corruption must be .* got .*1, 0"),
    ],
)  # fmt: skip
def test_refusals(act, message):
    dataset = images()
    with pytest.raises(InputError, match=message):
        act(dealt(dataset)).validate(40, 3, dataset.labels)


def test_only_images_without_overlap_shift():
    flat = pfl.dataset_from_arrays("flat", RNG.random((40, 5)), np.arange(40) % 3)
    for kind, word in (("rotate", "rotate"), ("corrupt", "corrupt")):
        shifted = pfl.data.shift_features(dealt(flat), kind, 0)
        with pytest.raises(InputError, match=f"sample to {word} must be"):
            pfl.federate(flat, shifted, model="mlp")
        with pytest.raises(InputError, match="shift it only once"):
            pfl.data.shift_features(shifted, kind, 0)
    wide = images((2, 6, 1))
    quarter = pfl.data.shift_features(dealt(wide), "rotate", 0)
    with pytest.raises(InputError, match="must be square, or groups=2, got"):
        pfl.federate(wide, quarter, model="mlp")
    shared = Partition.from_lists([[0, 1], [1, 2]], [[3], [4]], allow_overlap=True)
    shared = pfl.data.shift_features(shared, "corrupt", 0)
    with pytest.raises(InputError, match="1 samples are held by several clients"):
        pfl.federate(images(), shared, model="mlp")
