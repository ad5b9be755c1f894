"""Public parts of a data set: by class, at random, by a column."""

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.data.public_part import sample_hashes


def dataset(**more):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 3, 3), np.uint8), np.arange(40) % 4
    options = {"class_names": ("cat", "dog", "cow", "hen")} | more
    columns = {"domain": np.where(np.arange(50) % 5 == 0, "sketch", "photo")}
    return pfl.dataset_from_arrays(
        "made", x, y, x[:10] + 1, y[:10], num_classes=4, columns=columns, **options
    )


def test_classes_are_numbered_anew():
    whole = dataset()
    public, rest = pfl.data.split_public(whole, "classes:0,2-3")
    assert (public.num_classes, rest.num_classes) == (3, 1)
    assert public.class_names == ("cat", "cow", "hen")
    assert rest.class_names == ("dog",)
    np.testing.assert_array_equal(public.train_x, whole.train_x[whole.train_y != 1])
    np.testing.assert_array_equal(public.train_y[:6], [0, 1, 2, 0, 1, 2])
    assert rest.num_train == 10 and rest.num_test == 3 and set(rest.labels) == {0}
    assert public.columns["domain"].shape == (30 + 7,)
    assert public.note == "only its public part classes:0,2-3"
    unnamed, _ = pfl.data.split_public(dataset(class_names=()), "classes:1-2")
    assert unnamed.class_names == ("1", "2")


def test_share_and_column():
    whole = dataset()
    public, rest = pfl.data.split_public(whole, "share:0.3", seed=1)
    assert (public.num_train, public.num_test, rest.num_train, rest.num_test) == (12, 3, 28, 7)
    both = np.concatenate([public.train_x, rest.train_x])
    np.testing.assert_array_equal(
        np.sort(sample_hashes(both)), np.sort(sample_hashes(whole.train_x))
    )
    other, _ = pfl.data.split_public(whole, "share:0.3", seed=2)
    assert other.fingerprint() != public.fingerprint()
    assert public.num_classes == rest.num_classes == 4
    public, rest = pfl.data.split_public(whole, "column:domain=sketch")
    assert (public.num_train, rest.num_test) == (8, 8)
    assert set(rest.columns["domain"]) == {"photo"}


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("0-4", "public must read classes:0-4,7, share:0.2 or column:NAME=VALUE,VALUE, got '0-4'"),
        ("classes:2-5", "public must be classes in 0..3, such as 0-4,7, got '2-5'"),
        ("classes:3-2", "public must be classes in 0..3"),
        ("classes:0-3", "The rest of 'made' by 'classes:0-3' has no training sample"),
        ("share:1", "public=share must be between 0 and 1"),
        ("share:0.001", "The public part of 'made' by 'share:0.001' has no training sample"),
        ("column:domain", "public must read .*, got 'column:domain'"),
        ("column:domains=photo", "Did you mean 'domain'"),
        ("column:domain=photos", "Did you mean 'photo'"),
    ],
)
def test_refusals(part, message):
    with pytest.raises(pfl.InputError, match=message):
        pfl.data.split_public(dataset(), part)


def test_classes_need_classes():
    numbers = pfl.dataset_from_arrays("numbers", np.ones((4, 2)), np.ones(4), task="regression")
    with pytest.raises(pfl.InputError, match="needs classes, and 'numbers' has none"):
        pfl.data.split_public(numbers, "classes:0")


def test_hashes_are_those_of_the_stored_values():
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    known = sample_hashes(x)
    assert known.dtype == np.uint64 and len(set(known)) == 3
    np.testing.assert_array_equal(sample_hashes(x.astype(">i4")), known)
    assert sample_hashes(x.astype(np.float32))[1] != known[1]
    assert sample_hashes(x[:, ::-1][::-1])[2] != known[0]
