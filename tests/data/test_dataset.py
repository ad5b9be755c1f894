"""A data set from arrays: classes, tokens, names, and what it says of itself."""

import hashlib

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import fedjax_pfl as pfl
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.scaling import input_scaling
from fedjax_pfl.utils.errors import InputError


def test_number_of_classes_given():
    data = dataset_from_arrays("a", np.zeros((2, 3)), [1, 3], num_classes=6)
    assert data.num_classes == 6
    with pytest.raises(InputError, match=r"must be in 0\.\.2, got '0\.\.3'"):
        dataset_from_arrays("a", np.zeros((2, 3)), [1, 3], num_classes=3)


def test_what_a_data_set_says_of_itself():
    x = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    one = dataset_from_arrays("a", x, [0, 1, 0, 1])
    # The hash of what it hashes, spelt out: class count and vocabulary, then each array.
    digest = hashlib.sha256(b"2 None")
    digest.update(b"|u1 (4, 2, 3, 1)" + x.tobytes())
    digest.update(b"<i4 (4,)" + np.array([0, 1, 0, 1], "<i4").tobytes())
    digest.update(b"|u1 (0, 2, 3, 1)" + b"<i4 (0,)")
    assert one.fingerprint() == digest.hexdigest()
    assert dataset_from_arrays("b", x, [0, 1, 0, 1], note="n").fingerprint() == one.fingerprint()
    others = [
        dataset_from_arrays("a", x[::-1], [0, 1, 0, 1]),
        dataset_from_arrays("a", x, [0, 1, 1, 1]),
        dataset_from_arrays("a", x, [0, 1, 0, 1], num_classes=3),
        dataset_from_arrays("a", x[:3], [0, 1, 0], x[3:], [1]),
        dataset_from_arrays("a", x.astype(np.float32), [0, 1, 0, 1]),
    ]
    assert len({data.fingerprint() for data in [one, *others]}) == 6
    assert one.describe() == "a: 4 training samples 2x3x1, 2 classes"
    assert others[3].describe() == "a: 3 training and 1 test samples 2x3x1, 2 classes"


def test_token_ids():
    ids = np.array([[2, 3, 0], [1, 0, 0]], np.uint16)
    data = dataset_from_arrays("t", ids, [0, 1], vocab_size=4, note="short")
    assert (data.train_x.dtype, data.input_shape, data.vocab_size) == (np.int32, (3,), 4)
    np.testing.assert_array_equal(data.train_x, ids)
    assert input_scaling("default", data) == (1, 0)
    assert data.describe() == "t: 2 training texts of 3 tokens, vocabulary of 4, 2 classes; short"
    for name in ("half", "standard"):
        with pytest.raises(InputError, match=r"are token ids, which are never scaled: .* got"):
            input_scaling(name, data)
    bad = [
        ({"vocab_size": 3}, r"Token ids of the training .* must be in 0\.\.2, got '0\.\.3'"),
        ({"vocab_size": 2**25}, r"vocab_size must be a whole number in 1\.\."),
        ({"vocab_size": 4, "train_x": ids / 1}, "must be integer token ids, got 'float64'"),
        ({"vocab_size": 4, "train_x": ids[0]}, r"must be \[n, length\]"),
        ({"vocab_size": 4, "train_x": [["a b"], ["c"]]}, r"are texts: load_dataset\('text_csv:"),
    ]
    for change, message in bad:
        with pytest.raises(InputError, match=message):
            dataset_from_arrays("t", **({"train_x": ids, "train_y": [0, 1]} | change))


def test_class_names_must_be_as_many_as_classes():
    with pytest.raises(InputError, match="class_names of data set 'a' must be 2 names or none"):
        dataset_from_arrays("a", np.zeros((2, 2)), [0, 1], class_names=("x",))


def test_data_print_in_a_line():
    dataset = pfl.load_dataset("digits")
    assert repr(dataset) == "Dataset(digits: 1797 train, 10 classes, (8, 8, 1))"
    x, y = np.zeros((6, 2), np.float32), np.zeros((6, 1), np.float32)
    other = dataset_from_arrays("own", x, y, x[:2], y[:2], task="regression")
    assert repr(other) == "Dataset(own: 6 train, 2 test, 1 number to predict, (2,))"
    partition = pfl.make_partition("iid", dataset, 4, seed=0)
    sizes = [partition.sizes(split).sum() for split in ("train", "test")]
    assert repr(partition) == "Partition(iid: 4 clients, {} train, {} test)".format(*sizes)
    text = repr(partition.split_validation(0.5, seed=0))
    assert text.endswith(" validation)")


def test_channels_come_last():
    with pytest.raises(InputError, match=r"channels last by np\.moveaxis\(x, 1, -1\), got"):
        dataset_from_arrays("a", np.zeros((2, 3, 8, 8)), [0, 1])
    with pytest.raises(InputError, match=r"channels last .*, got \(2, 3, 32, 48\)"):
        dataset_from_arrays("a", np.zeros((2, 3, 32, 48), np.uint8), [0, 1])
    for shape in ((1, 128, 9), (1, 100, 64), (3, 256, 9), (3, 32, 3)):  # signals; an image
        assert dataset_from_arrays("a", np.zeros((2, *shape)), [0, 1]).input_shape == shape


def test_samples_of_several_shapes():
    with pytest.raises(InputError, match=r"must be samples of one shape, .* \[\(1,\), \(2,\)\]"):
        dataset_from_arrays("mine", [[1.0, 2.0], [3.0]], [0, 1])


FRAME = pd.DataFrame({"a": pd.array([1, 2, 3], "Int64"), "b": [0.5, 1, 2]})


@pytest.mark.parametrize(
    "samples",
    [
        FRAME,
        FRAME.astype({"b": "Float64"}),
        FRAME.astype({"a": object, "b": "category"}),
        pd.Series([np.ones(2), np.zeros(2), np.ones(2)]),
        np.array([[True, False]] * 3),
        scipy.sparse.csr_matrix(np.eye(3, 2)),
        jnp.ones((3, 2), "bfloat16"),
    ],
)
def test_numbers_of_other_libraries(samples):
    data = dataset_from_arrays("a", samples, pd.Series([0, 2, 1], dtype="Int64"))
    values = samples.toarray() if hasattr(samples, "toarray") else list(np.asarray(samples))
    np.testing.assert_array_equal(data.train_x, np.array(values, np.float32))
    assert data.train_x.dtype == np.float32 and data.train_y.tolist() == [0, 2, 1]


def test_labels_that_are_text():
    words = pd.Series(["cat", "ant", "cat"])
    for labels in (words, words.astype("category"), pd.DataFrame({"kind": words})):
        data = dataset_from_arrays("a", FRAME, labels, FRAME[:1], ["bee"])
        assert data.class_names == ("ant", "bee", "cat")
        assert [*data.train_y, *data.test_y] == [2, 0, 2, 1]
    blanks = dataset_from_arrays("a", FRAME, ["cat ", "cat", "\tant"], FRAME[:1], [" cat"])
    assert blanks.class_names == ("ant", "cat")
    given = dataset_from_arrays("a", FRAME, words, class_names=["cat ", "ant"])
    assert given.train_y.tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="label 'cat'"):
        dataset_from_arrays("a", FRAME, words, class_names=("ant", "bee"))
    with pytest.raises(InputError, match="'nan', a word for a missing value, in row 2"):
        dataset_from_arrays("a", FRAME, ["cat", "nan", "ant"])
    with pytest.raises(InputError, match=r"Column 'c' of the training samples .*get_dummies"):
        dataset_from_arrays("a", FRAME.assign(c=words), [0, 1, 0])
    with pytest.raises(InputError, match=r"Column 'c' .* has 2 missing values: fill them"):
        dataset_from_arrays("a", FRAME.assign(c=[None, 1.0, np.nan]), [0, 1, 0])
    with pytest.raises(InputError, match=r"labels .* integer or text, got '1 missing values'"):
        dataset_from_arrays("a", FRAME, pd.Series(["cat", None, "ant"], dtype=object))
    with pytest.raises(InputError, match=r"'w' .* or text, got '1 missing values'"):
        dataset_from_arrays("a", FRAME, words, columns={"w": [1.0, 2.0, np.nan]})


MASKED = np.ma.masked_array([[1.0], [2.0]], [[False], [True]])


def test_masked_arrays_lose_no_mask():
    with pytest.raises(InputError, match=r"training samples .* without a mask, got '1 masked val"):
        dataset_from_arrays("a", MASKED, [0, 1])
    with pytest.raises(InputError, match=r"training samples .* without a mask, got '1 masked val"):
        dataset_from_arrays("a", list(MASKED), [0, 1])
    with pytest.raises(InputError, match=r"training labels .* without a mask"):
        dataset_from_arrays("a", [[1.0], [2.0]], np.ma.masked_array([0, 1], [0, 1]))
    with pytest.raises(InputError, match=r"Column 'c' of .* without a mask"):
        who = np.ma.masked_array([0, 1], [0, 1])
        dataset_from_arrays("a", [[1.0], [2.0]], [0, 1], columns={"c": who})
    assert dataset_from_arrays("a", np.ma.masked_array(MASKED.data), [0, 1]).num_train == 2


@pytest.mark.parametrize(("shape", "factor"), [((2, 2, 2, 1), 50), ((2, 4), 255)])
def test_images_of_two_ranges(shape, factor):
    x = np.linspace(0, 1, 8).reshape(shape)
    with pytest.raises(InputError, match=f"data set 'a' reach 1 in one split and {factor} in the"):
        dataset_from_arrays("a", factor * x, [0, 1], x, [0, 1])
    assert dataset_from_arrays("a", x, [0, 1], x / 200, [0, 1]).num_test == 2


def test_columns_of_a_frame_in_another_order():
    frame = pd.DataFrame({"age": [50.0, 60], "cost": [1.0, 2]})
    assert dataset_from_arrays("a", frame, [0, 1], frame, [0, 1]).feature_names == ("age", "cost")
    for test, said in [
        (frame[["cost", "age"]], r"\('age', 'cost'\), in this order: .* got \('cost', 'age'\)"),
        (frame.rename(columns={"age": "Age"}), r"Unknown column .* 'Age'\. Did you mean 'age'"),
        (frame[["age"]], "lack the column 'cost'"),
    ]:
        with pytest.raises(InputError, match=said):
            dataset_from_arrays("a", frame, [0, 1], test, [0, 1])


@pytest.mark.parametrize("kind", ["float32", "int64", "bool"])
def test_one_hot_labels(kind):
    with pytest.raises(InputError, match=r"must be \(n,\): np.argmax\(labels, 1\) of one-hot rows"):
        dataset_from_arrays("a", np.zeros((3, 2)), np.eye(3).astype(kind))


@pytest.mark.parametrize("kind", ["uint8", "int8", "bool"])
def test_integers_of_a_frame_are_no_pixels(kind):
    data = dataset_from_arrays("a", pd.DataFrame(np.eye(3, 2, dtype=kind)), [0, 1, 1])
    assert (data.train_x.dtype, data.input_scaling) == (np.float32, "raw")


def test_rows_of_0_and_1_are_no_pixels():
    x = np.eye(3, 2, dtype=np.uint8)
    assert dataset_from_arrays("a", x, [0, 1, 1], x, [0, 1, 1]).input_scaling == "raw"
    for rows in ((x, 2 * x), (2 * x, x)):
        data = dataset_from_arrays("a", rows[0], [0, 1, 1], rows[1], [0, 1, 1])
        assert data.input_scaling == "half"
    assert dataset_from_arrays("a", x[:, :, None], [0, 1, 1]).input_scaling == "half"
