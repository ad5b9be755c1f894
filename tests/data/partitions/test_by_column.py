"""Natural clients: the rule `by_column`."""

import json

import numpy as np
import pytest

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError

HOSPITALS = np.array([3] * 8 + [10] * 4 + [7] * 1 + [5] * 7)  # 20 training samples
TESTED = np.array([3] * 2 + [5] * 3 + [99] * 5)  # 10 official test samples
WHO = [f"p{i % 3}" for i in range(30)]


def hospitals(order=slice(None), test=True):
    """Samples whose column is `HOSPITALS`, then `TESTED`; training samples in another order."""
    train, x = HOSPITALS[order], np.zeros((30, 2), np.float32)
    tested = (x[20:], np.arange(10) % 2) if test else ()
    columns = {"hospital": np.concatenate([train, TESTED])[: 30 if test else 20]}
    columns["who"] = WHO[: 30 if test else 20]
    return dataset_from_arrays("h", x[:20], np.arange(20) % 2, *tested, columns=columns)


def test_each_value_is_a_client_in_ascending_order():
    data = hospitals(np.random.default_rng(0).permutation(20))
    p = make_partition("by_column", data, None, 0, column="hospital")
    assert p.names == ("hospital_3", "hospital_5", "hospital_10")  # 7 has one sample
    assert p.options["left_out"] == 1
    for i, value in enumerate((3, 5, 10)):
        for split in ("train", "test"):
            assert set(data.columns["hospital"][p.client(split, i)]) <= {value}
    assert p.sizes("train").tolist() == [8, 7, 4]
    assert p.sizes("test").tolist() == [2, 3, 0]  # official samples; those of 99 are nobody's
    json.dumps(p.options)


def test_without_official_samples_a_part_of_each_client_is_held_out():
    data = hospitals(test=False)
    p = make_partition("by_column", data, None, 0, column="hospital", test_fraction=0.5, min_size=1)
    assert p.sizes("train").tolist() == [4, 3, 1, 2]
    assert p.sizes("test").tolist() == [4, 4, 0, 2]  # to the nearest
    assert sorted(np.concatenate([p.train.idx, p.test.idx])) == list(range(20))
    other = make_partition("by_column", data, None, 1, column="hospital", test_fraction=0.5)
    assert other.client("test", 0).tolist() != p.client("test", 0).tolist()


def test_a_number_of_clients_is_drawn():
    data = hospitals()
    drawn = {make_partition("by_column", data, 2, s, column="who").names for s in range(20)}
    assert drawn == {("p0", "p1"), ("p0", "p2"), ("p1", "p2")}


def test_the_only_column_needs_no_name():
    data = dataset_from_arrays("a", np.zeros((4, 1)), [0, 1] * 2, columns={"id": list("bbaa")})
    assert make_partition("by_column", data, None, 0).names == ("a", "b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "hosptal"}, "Unknown column of the data set: 'hosptal'. Did you mean 'hospita"),
        ({}, "column must be one of hospital, who, got ''"),
        ({"column": "who", "min_size": 9}, r"No values .* 9 training samples or more .* has 7"),
        ({"column": "who", "clients": 4}, "num_clients is 4, but 3 values of column 'who' have 2"),
        ({"column": "who", "alpha": 1}, "Unknown option of partition rule 'by_column' 'alpha'"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(InputError, match=message):
        make_partition("by_column", hospitals(), options.pop("clients", None), 0, **options)


def test_test_samples_of_others():
    data = hospitals()
    data.columns["hospital"][20:] = 1
    with pytest.raises(InputError, match="No test samples are of these clients, by column 'hospi"):
        make_partition("by_column", data, None, 0, column="hospital")
    pooled = make_partition("by_column", data, None, 0, column="hospital", test_split="pooled")
    assert pooled.names[0] == "hospital_1"


def test_only_natural_clients_may_be_left_uncounted():
    with pytest.raises(InputError, match="num_clients must be a whole number of at least 1, got N"):
        make_partition("iid", hospitals(), None, 0)
    bare = dataset_from_arrays("a", np.zeros((4, 1)), [0, 1, 0, 1])
    with pytest.raises(InputError, match="by_column needs a column of the data set, which has no"):
        make_partition("by_column", bare, None, 0, column="who")


def test_names_are_kept_in_the_file(tmp_path):
    p = make_partition("by_column", hospitals(), None, 0, column="who")
    p.save(tmp_path / "p.npz")
    loaded = Partition.load(tmp_path / "p.npz").split_validation(0.3, 0)
    assert loaded.names == p.names == ("p0", "p1", "p2")
    for names in (("a", "b"), ("a", "b", "a"), "abc"):
        with pytest.raises(InputError, match="names must be 3 different names of clients"):
            Partition(p.train, p.test, names=names)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 2.0], "must be whole numbers or text, got 'float64'"),
        ([1], r"must be \(2,\), got \(1,\)"),
        (["a", " "], "is empty in row 2"),
        (["a", " a"], "has 'a' with other blanks around it, too: write it one way"),
    ],
)
def test_bad_columns(values, message):
    with pytest.raises(InputError, match=message):
        dataset_from_arrays("a", np.zeros((2, 1)), [0, 1], columns={"who": values})


def test_numbers_as_text_are_numbers_unless_some_are_not():
    def column(values):
        return dataset_from_arrays("a", np.zeros((2, 1)), [0, 1], columns={"w": values}).columns[
            "w"
        ]

    assert column(["10", " 9"]).tolist() == [10, 9]
    assert column(["07", "8"]).tolist() == ["07", "8"]
    assert column(np.array(["a", "b"], object)).tolist() == ["a", "b"]


def test_several_clients_of_a_value_share_its_samples():
    data = hospitals(test=False)
    p = make_partition("by_column", data, 4, 0, column="who", clients_each=2, test_fraction=0)
    assert len({name[:-2] for name in p.names}) == 2 and p.names[0].endswith("-0")
    for i, name in enumerate(p.names):
        assert set(data.columns["who"][p.client("train", i)]) == {name[:-2]}
    assert p.sizes("train").tolist() in ([4, 3, 4, 3], [4, 3, 3, 3])
    with pytest.raises(InputError, match="num_clients must be a multiple of clients_each, 2"):
        make_partition("by_column", data, 3, 0, column="who", clients_each=2)
    with pytest.raises(InputError, match=r"num_clients is 8, but 3 values .* have 4 samples"):
        make_partition("by_column", data, 8, 0, column="who", clients_each=2)
