"""Statistics of preprocessing are those of the partition's training samples, and of no others."""

from dataclasses import replace

import numpy as np
import pytest

from fedjax_pfl.core import make_algorithm
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.feature_shift import with_corruption
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.poisoning import brightness
from fedjax_pfl.data.public_part import split_public
from fedjax_pfl.data.scaling import FITTED, input_scaling
from fedjax_pfl.data.vocabulary import Vocabulary
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.engine.simulate import simulate
from fedjax_pfl.federation.build import federate
from fedjax_pfl.federation.options import InputOptions
from fedjax_pfl.utils.errors import InputError

# Pool indices from 12 on are official test samples; sample 11 is nobody's.
PARTITION = Partition.from_lists([[0, 1, 12], [2, 3, 4]], [[5], [6, 13]], [[7], [8, 9, 10]])
TRAIN = np.array([0, 1, 2, 3, 4, 12])


def dataset(x, scaling="standard"):
    labels = np.arange(len(x)) % 2
    return dataset_from_arrays("a", x[:12], labels[:12], x[12:], labels[12:], input_scaling=scaling)


def samples(*shape):
    rng = np.random.default_rng(0)
    return (rng.normal(size=(14, *shape)) * rng.uniform(1, 9, 14)[:, None]).astype(np.float32)


def test_standard_scaling_is_fitted_to_the_training_samples_of_all_clients():
    x = samples(3)
    scale, shift = input_scaling("standard", dataset(x), PARTITION)
    np.testing.assert_allclose(scale, 1 / x[TRAIN].std(0), rtol=1e-5)
    np.testing.assert_allclose(shift, -x[TRAIN].mean(0) / x[TRAIN].std(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", FITTED)
def test_no_statistic_depends_on_samples_that_are_not_for_training(name):
    x = samples(3)
    changed = x.copy()
    changed[np.setdiff1d(np.arange(14), TRAIN)] += 100
    for one, other in zip(
        input_scaling(name, dataset(x), PARTITION),
        input_scaling(name, dataset(changed), PARTITION),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


def test_standard_by_client_is_fitted_to_each_clients_own_samples():
    x = samples(3)
    scale, shift = input_scaling("standard_by_client", dataset(x), PARTITION)
    for row, rows in enumerate(PARTITION.train.lists()):
        np.testing.assert_allclose(scale[row], 1 / x[rows].std(0), rtol=1e-5)
        np.testing.assert_allclose(shift[row], -x[rows].mean(0) / x[rows].std(0), rtol=1e-4)


@pytest.mark.costly
def test_minibatches_are_scaled_as_each_client_is():
    x = samples(3)
    data = InputOptions(input_scaling="standard_by_client").data(dataset(x), PARTITION)
    for row, rows in enumerate(PARTITION.train.lists()):
        places = data.train.offset[row] + np.arange(len(rows))
        batch = data.batch(row, data.train.index[places], np.ones(len(rows), bool), "float32")
        expected = (x[rows] - x[rows].mean(0)) / x[rows].std(0)
        np.testing.assert_allclose(batch.inputs, expected, atol=1e-4)


def test_a_client_without_training_samples_is_scaled_as_all_together():
    x, partition = samples(3), Partition.from_lists([[0, 1, 2], []], [[3], [4]])
    scale, _ = input_scaling("standard_by_client", dataset(x), partition)
    np.testing.assert_array_equal(scale[1], input_scaling("standard", dataset(x), partition)[0])


def test_samples_of_several_clients_count_once():
    x = samples(3)
    partition = Partition.from_lists([[0, 1], [0, 2]], [[3], [4]], allow_overlap=True)
    scale, _ = input_scaling("standard", dataset(x), partition)
    np.testing.assert_allclose(scale, 1 / x[:3].std(0), rtol=1e-5)


def test_a_scaling_needs_a_partition_with_clients():
    with pytest.raises(InputError, match=r"partition must be a Partition, .* got 'int'"):
        input_scaling("standard", dataset(samples(3)), 3)
    with pytest.raises(InputError, match="Number of clients of the partition must be at least 1"):
        federate(dataset(samples(3)), Partition.from_lists([], []), "softmax")


def test_known_constants_as_input_scaling():
    data = dataset(samples(2))
    scale, shift = input_scaling(([1.0, 2.0], 4.0), data)
    np.testing.assert_allclose(data.train_x * scale + shift, (data.train_x - [1, 2]) / 4, rtol=1e-5)
    for pair, message in (
        (([1, 2, 3], 1), "Mean of input_scaling must be 1 or 2 finite numbers"),
        ((0, [1, 0]), "Deviation of input_scaling must be 1 or 2 positive numbers"),
        ((0, "one"), "Deviation of input_scaling must be 1 or 2 positive numbers"),
    ):
        with pytest.raises(InputError, match=message):
            input_scaling(pair, data)


@pytest.mark.costly
def test_predictions_are_scaled_as_each_client_is():
    x = samples(3)
    apart = federate(dataset(x), PARTITION, "softmax", input_scaling="standard_by_client")
    final = simulate(make_algorithm("local"), apart, rounds=1).final
    given = input_scaling("standard_by_client", dataset(x), PARTITION)
    for row in (0, 1):
        model = final.models([row])["personalized"]["params"]
        kernel, bias = (
            np.asarray(leaf)[0, 0] for leaf in (model["head"]["kernel"], model["head"]["bias"])
        )
        inputs = x * given[0][row] + given[1][row]
        np.testing.assert_allclose(final.predict(0, row, x), inputs @ kernel + bias, rtol=1e-4)


@pytest.mark.costly
def test_new_clients_are_scaled_by_the_others_statistics():
    x = samples(3)
    both = federate(dataset(x), PARTITION, "softmax")
    others, new = split_new_clients(both, 1)
    alone = Partition.from_lists([[0, 1, 12]], [[5]])
    scale, shift = input_scaling("standard", dataset(x), alone)
    for part in (others, new):
        np.testing.assert_array_equal(part.data.scale, scale)
        np.testing.assert_array_equal(part.data.shift, shift)
    own = federate(dataset(x), PARTITION, "softmax", input_scaling="standard_by_client")
    for row, part in enumerate(split_new_clients(own, 1)):
        np.testing.assert_array_equal(part.data.scale, own.data.scale[row : row + 1])


@pytest.mark.parametrize("unit", ["client", "sample"])
@pytest.mark.parametrize("scaling", ["default", *FITTED])
def test_privacy_refuses_statistics_of_samples(unit, scaling):
    with pytest.raises(InputError, match=f"dp='{unit}' does not cover input_scaling 'standard"):
        federate(
            dataset(samples(3)), PARTITION, "softmax", dp=unit, dp_clip=1.0, dp_noise=1.0,
            input_scaling=scaling,
        )  # fmt: skip


def test_shared_statistics_are_noted():
    note = "inputs scaled by the mean and deviation of all clients' training samples"
    assert note in federate(dataset(samples(3)), PARTITION, "softmax").notes
    for scaling in ("raw", "standard_by_client", ([0, 0, 0], [1, 1, 1])):
        data = federate(dataset(samples(3)), PARTITION, "softmax", input_scaling=scaling)
        assert note not in data.notes


def test_large_inputs_are_noted_but_those_of_private_runs():
    large = replace(dataset(samples(3)), input_scaling="raw")
    noise = {"dp": "client", "dp_clip": 1.0, "dp_noise": 1.0}
    for factor, more, noted in ((40, {}, True), (1, {}, False), (40, noise, False)):
        data = replace(large, train_x=large.train_x / abs(large.train_x).max() * factor)
        notes = federate(data, PARTITION, "softmax", **more).notes
        assert any("exceed ±30 and are not scaled" in note for note in notes) == noted


def text_data(*texts, task="classification", **options):
    """Texts of two classes, all of them official training samples."""
    limits = Vocabulary(**{"max_tokens": 99, "min_frequency": 1} | options)
    x = np.array(texts, np.int32)
    y = np.arange(len(x)) % 2
    if task == "next_token":
        x, y = x[:, :-1], np.where(x[:, 1:] == 0, -1, x[:, 1:])
    return dataset_from_arrays("texts", x, y, vocab_size=12, vocabulary=limits, task=task)


TEXTS = [[3, 4, 3], [5, 3, 0], [7, 8, 9], [5, 4, 3]]  # of clients 0, 1; a test text; a new client
HELD = Partition.from_lists([[0], [1], [3]], [[2], [], []])


@pytest.mark.parametrize("task", ["classification", "next_token"])
def test_vocabulary_is_that_of_the_training_samples(task):
    data = text_data(*TEXTS, task=task)
    federation = federate(data, HELD, "fasttext" if task == "classification" else "char_lstm")
    assert federation.data.tokens.tolist() == [0, 1, 1, 2, 3, 4, *[1] * 6]
    assert federation.network.module.vocab_size == 5
    assert federation.data.num_outputs == (2 if task == "classification" else 5)
    assert "vocabulary of all clients' training samples" in federation.notes
    changed = text_data(*TEXTS[:2], [10, 11, 10], TEXTS[3], task=task)
    assert federate(changed, HELD, "fasttext" if task == "classification" else "char_lstm"
                    ).data.tokens.tolist() == federation.data.tokens.tolist()  # fmt: skip


@pytest.mark.costly
def test_models_see_the_ids_of_the_vocabulary():
    for task in ("classification", "next_token"):
        data = text_data(*TEXTS, task=task)
        federation = federate(data, HELD, "fasttext" if task == "classification" else "char_lstm")
        batch = federation.data.batch(0, np.array([0, 2]), np.ones(2, bool), "float32")
        assert batch.inputs.tolist() == [row[: data.input_shape[0]] for row in
                                         ([2, 3, 2], [1, 1, 1])]  # fmt: skip
        if task == "next_token":
            assert batch.labels.tolist() == [[3, 2], [1, 1]]
    given = text_data(*TEXTS).with_vocabulary(text_data(*TEXTS).token_ids(HELD.train.idx))
    results = [
        simulate(make_algorithm("fedavg"), federate(one, HELD, "fasttext"), rounds=2)
        for one in (text_data(*TEXTS), given)
    ]
    np.testing.assert_array_equal(*(result.clients["train_loss"] for result in results))
    outputs = [result.final.predict(0, 0, one.train_x) for result, one in
               zip(results, (text_data(*TEXTS), given), strict=True)]  # fmt: skip
    np.testing.assert_array_equal(*outputs)
    with pytest.raises(InputError, match=r"Token ids must be in 0\.\.11, as in the data set"):
        results[0].final.predict(0, 0, np.full((1, 3), 12))


def test_new_clients_add_nothing_to_the_vocabulary():
    others, new = split_new_clients(federate(text_data(*TEXTS), HELD, "fasttext"), 1)
    for part in (others, new):
        assert part.data.tokens.tolist() == [0, 1, 1, 2, 3, 4, *[1] * 6]
    others, _ = split_new_clients(federate(text_data(*TEXTS[:3], [6, 6, 6]), HELD, "fasttext"), 1)
    assert others.data.tokens.tolist() == [0, 1, 1, 2, 3, 4, *[1] * 6]


def test_the_public_part_gives_its_vocabulary_to_the_rest():
    public, rest = split_public(text_data(*TEXTS), "classes:0")
    assert (public.vocabulary, rest.vocabulary, rest.vocab_size) == (None, None, 7)
    assert public.train_x.tolist() == [[2, 3, 2], [4, 5, 6]]
    assert rest.train_x.tolist() == [[1, 2, 0], [1, 3, 2]]


def test_privacy_refuses_a_vocabulary_of_samples():
    with pytest.raises(InputError, match="dp='client' does not cover the vocabulary"):
        federate(text_data(*TEXTS), HELD, "fasttext", dp="client", dp_clip=1.0, dp_noise=1.0)


def test_corruptions_and_triggers_see_the_range_of_training_samples():
    x = np.random.default_rng(0).uniform(0, 1, (14, 8, 8, 1)).astype(np.float32)
    changed = x.copy()
    changed[5:12] *= 7
    partition = replace(PARTITION, corruption=np.array([[6, 3], [0, 0]]))
    one, other = (with_corruption(dataset(each, "raw"), partition) for each in (x, changed))
    np.testing.assert_array_equal(one.samples(TRAIN), other.samples(TRAIN))
    assert brightness(dataset(changed), PARTITION) == x[TRAIN].max()
