"""New clients, and their models after the training."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import arguments, new_clients
from fedjax_pfl.engine.final_models import Final
from fedjax_pfl.engine.new_clients import score_new_clients, split_new_clients, with_samples
from fedjax_pfl.testing.toys import assert_close, toy_federation
from fedjax_pfl.utils import keys, trees
from tests.engine.finals import final_of

SIZES, TESTS = (7, 3, 5, 10, 4), (3, 2, 1, 4, 0)


def federation(**options):
    return toy_federation(SIZES, TESTS, dtype="float32", **options)


@pytest.mark.costly
def test_split_new_clients_keeps_everybody_s_data():
    whole = federation(participation=0.6)
    left, new = split_new_clients(whole, 2)
    assert (left.num_clients, new.num_clients) == (3, 2)
    assert left.data.ids.tolist() == [0, 1, 2] and new.data.ids.tolist() == [3, 4]
    assert left.participation.cohort_size == 2  # 0.6 of 3
    assert left.data.samples is whole.data.samples  # one pool
    for part, rows in ((left, [0, 1, 2]), (new, [3, 4])):
        for split in ("train", "test", "validation"):
            ours, theirs = part.data.split(split), whole.data.split(split)
            np.testing.assert_array_equal(ours.size, np.asarray(theirs.size)[rows])
            for k, row in enumerate(rows):
                np.testing.assert_array_equal(
                    ours.index[ours.offset[k] :][: ours.size[k]],
                    theirs.index[theirs.offset[row] :][: theirs.size[row]],
                )
        wanted = np.asarray(whole.data.class_counts)[rows]
        np.testing.assert_array_equal(part.data.class_counts, wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"aggregator": "krum", "aggregator_options": {"f": 1}}, "krum"),
        ({"aggregator": "fltrust", "aggregator_options": {"root": 4}}, "root of the robust rule"),
        ({"attackers": [0, 1], "attack": "alie"}, "attackers must be fewer than half of the 3"),
    ],
)
def test_clients_that_are_left_are_enough_for_a_rule(options, said):
    with pytest.raises(pfl.InputError, match=said):
        split_new_clients(federation(**options), 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": ()}, "steps must be a list of at least one number"),
        ({"fractions": 0.5}, r"fractions must be a list \(each value a number\), got 0\.5"),
    ],
)
def test_steps_and_fractions_are_lists_of_numbers(options, said):
    left, new = split_new_clients(federation(), 2)
    final = Final(arguments.checked_program(pfl.make_algorithm("fedavg"), left), None)
    with pytest.raises(pfl.InputError, match=said):
        score_new_clients(final, new, **options)


def test_new_clients_of_an_algorithm_that_validates_need_validation_samples():
    left, _ = split_new_clients(federation(validation_size=2), 2)
    _, new = split_new_clients(federation(validation_size=0), 2)
    final = Final(arguments.checked_program(pfl.make_algorithm("fedfomo"), left), None)
    with pytest.raises(pfl.InputError, match="fedfomo uses validation samples, and no client has"):
        final.personalize(new)


def test_new_clients_without_test_samples_have_no_score(monkeypatch):
    left, new = split_new_clients(federation(), 2)
    final = Final(arguments.checked_program(pfl.make_algorithm("fedavg"), left), None)
    monkeypatch.setattr(Final, "personalize", lambda *_: jnp.zeros(1))
    monkeypatch.setattr(Final, "backbone", lambda _: None)
    monkeypatch.setattr(new_clients, "score", lambda *_: [jnp.array([3, 0])])
    np.testing.assert_array_equal(score_new_clients(final, new, steps=[1]), [[[[0.75, np.nan]]]])


@cache
def trained(name):
    """(the end of two runs in which the last two clients took no part, these two)."""
    left, new = split_new_clients(federation(validation_size=0), 2)
    return final_of(pfl.make_algorithm(name), left), new


@pytest.mark.costly
@pytest.mark.parametrize("name", ["fedavg", "feddwa"])
def test_score_new_clients_by_samples_and_steps(name):
    final, new = trained(name)
    scores = score_new_clients(final, new, steps=(0, 3), fractions=(0.5, 1.0))
    assert scores.shape == (2, 2, 2, 2)
    assert np.isin(4 * scores[..., 0], [0, 1, 2, 3, 4]).all()
    # Without steps samples play no part, and FedAvg's new client has the global model.
    np.testing.assert_array_equal(scores[:, 0, 0, 0], scores[:, -1, 0, 0])


def test_personalize_without_and_with_local_steps():
    final, new = trained("fedavg")
    server = jax.tree.map(lambda x: x[0], final.models()["global"].model)
    untouched = final.personalize(_steps(new, 0))
    assert_close(jax.tree.map(lambda x: x[0], untouched), trees.replicate(server, 2), "start", 0)
    moved = final.personalize(_steps(new, 3))
    kernels = [tree["params"]["head"]["kernel"][0, 0] for tree in (untouched, moved)]
    assert abs(kernels[0] - kernels[1]).max() > 1e-3


def _steps(fed, count):
    return fed.with_training(local_steps=count)


def _samples(fed):
    train = fed.data.train
    return [
        set(np.asarray(train.index)[start:][:size].tolist())
        for start, size in zip(train.offset.tolist(), train.size.tolist(), strict=True)
    ]


def test_with_samples_takes_a_random_part():
    whole, fewer = federation(), with_samples(federation(), 0.5)
    np.testing.assert_array_equal(fewer.data.train.size, [4, 2, 3, 5, 2])
    fewest = with_samples(whole, 0.01)
    assert fewest.data.train.size.tolist() == [1] * 5
    chains = list(zip(*map(_samples, (fewest, fewer, whole)), strict=True))
    assert all(few < half < every for few, half, every in chains)
    batches = pfl.training.batch_indices(
        fewer.schedule, fewer.data.train, keys.of_round(jax.random.key(0), "train", 0), 0, 0
    )
    assert {int(i) for step in batches for b in step for i in b} == chains[0][1]
    assert with_samples(whole, 1.0) is whole
    # Not the first ones, which would be those of the first classes where data are sorted.
    first = [set(sorted(every)[: len(half)]) for _, half, every in chains]
    assert any(half != begin for (_, half, _), begin in zip(chains, first, strict=True))


def test_with_samples_depends_on_the_permanent_id_only():
    whole = federation()
    _, new = split_new_clients(whole, 2)
    assert _samples(with_samples(new, 0.5)) == _samples(with_samples(whole, 0.5))[3:]
    alike = toy_federation((8, 8, 8), (2, 2, 2), dtype="float32")
    halves = zip(_samples(alike), _samples(with_samples(alike, 0.5)), strict=True)
    places = {tuple(sorted(every).index(one) for one in sorted(half)) for every, half in halves}
    assert len(places) == 3  # clients differ in theirs


@pytest.mark.parametrize("label_map", [False, True])
def test_classes_are_counted_in_the_part(label_map):
    fed = federation()
    seen_as = jnp.asarray(np.tile([2, 0, 1], (5, 1))) if label_map else None
    fewer = with_samples(replace(fed, data=replace(fed.data, label_map=seen_as)), 0.5)
    labels = np.asarray(fewer.data.labels)
    seen = [np.bincount(labels[[*one]], minlength=3) for one in _samples(fewer)]
    seen = [counts[[1, 2, 0]] for counts in seen] if label_map else seen
    np.testing.assert_array_equal(fewer.data.class_counts, seen)
    assert fewer.data.class_counts.dtype == np.int32


def test_without_classes_samples_are_counted():
    values = np.arange(20, dtype=np.float32)[:, None]
    data = pfl.dataset_from_arrays("line", values, values, task="regression")
    partition = pfl.make_partition("iid", data, num_clients=4, seed=0)
    fed = pfl.federate(data, partition, model="softmax")
    fewer = with_samples(fed, 0.5)
    np.testing.assert_array_equal(fewer.data.class_counts[:, 0], fewer.data.train.size)
    np.testing.assert_array_equal(fed.data.class_counts[:, 0], fed.data.train.size)


@pytest.mark.parametrize("count", [0, 5, -1])
def test_split_new_clients_leaves_at_least_one_client(count):
    with pytest.raises(pfl.InputError, match=r"new_clients must be in 1..4 of 5 clients"):
        split_new_clients(federation(), count)


def test_a_straggler_can_not_be_new():
    with pytest.raises(pfl.InputError, match="client 3 of them is a straggler"):
        split_new_clients(federation(stragglers={3: 1}), 2)
    left, _ = split_new_clients(federation(stragglers={1: 2}), 2)
    assert np.asarray(left.participation.delay).tolist() == [0, 2, 0]


def test_score_new_clients_refuses_other_types():
    _, new = trained("fedavg")
    with pytest.raises(pfl.InputError, match=r"final must be a Final, such as result\.final gives"):
        score_new_clients(None, new)
    with pytest.raises(pfl.InputError, match="count must be a whole number"):
        split_new_clients(federation(), 1.5)
