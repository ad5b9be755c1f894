"""Partition rules, all of them and the plain ones: sizes, class sets, determinism, refusals."""

import inspect
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.partition import held_out
from fedjax_pfl.data.partitions.rule_registry import (
    RULES,
    make_partition,
    parse_options,
    rule_options,
)
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import OFFICIAL, POOLED, counts, toy

# Rules that deal samples; `test_by_column` has the one whose clients are in the data.
DEALING = sorted(name for name, rule in RULES.items() if not rule.natural)


@pytest.mark.parametrize("rule", DEALING)
@pytest.mark.parametrize("dataset", [OFFICIAL, POOLED], ids=["official", "pooled"])
def test_common_properties(rule, dataset):
    p = make_partition(rule, dataset, 20, 3)
    # validate() is what asserts disjoint lists; that it can fail is tested with Partition.
    assert not p.allow_overlap
    p.validate(len(dataset.labels), 10, dataset.labels)
    assert p.rule == rule
    wanted = RULES[rule].test_split if dataset is OFFICIAL else "pooled"
    assert p.options["test_split"] == wanted
    assert p.num_clients == 20
    assert p.hash() == make_partition(rule, dataset, 20, 3).hash()
    assert p.hash() != make_partition(rule, dataset, 20, 4).hash()
    assert all(np.all(np.diff(p.client("train", i)) > 0) for i in range(20))
    json.dumps(p.options)
    assert set(p.options) >= {*rule_options(rule), "seed"}
    if p.options["test_split"] == "official":
        assert p.train.idx.max() < dataset.num_train <= p.test.idx.min()
        assert p.options["test_fraction"] is None
    else:
        sizes = p.sizes("train") + p.sizes("test")
        fraction = rule_options(rule)["test_fraction"]
        assert p.sizes("test").tolist() == [held_out(fraction, size) for size in sizes]
    if p.options["test_split"] == "train":
        assert max(p.train.idx.max(), p.test.idx.max()) < dataset.num_train


# A hash that is stored with a result must stay that of the same rule, data set and seed.
GOLDEN = {
    "dirichlet": "af97c169aef7fbea",
    "dirichlet_per_client": "9097e48500062567",
    "dirichlet_uncapped": "c0f6fde979dee688",
    "exdir": "256eebec464d2248",
    "grouped": "484d0981db2cb670",
    "iid": "d6df70f680eeb0e7",
    "pat": "574123633ccf0b9f",
    "pathological": "d627a22cdb27e87d",
    "pfedla_fig5": "c8ad67d10ad2d472",
    "pfedla_fig6": "24156763dc4543c9",
    "pfedla_noniid1": "a754da299dbdb003",
    "pfedla_noniid2": "a23895a322f7ab74",
    "shards": "b696205544b90015",
    "spfl": "c7b2c94a4cad09c0",
    "waffle": "73c53e120260f6f8",
}


@pytest.mark.parametrize("rule", DEALING)
def test_golden_hashes(rule):
    y = np.arange(2400) * 7 % 10
    x = np.zeros((2400, 1), np.float32)
    fixed = dataset_from_arrays("fixed", x[:2000], y[:2000], x[2000:], y[2000:])
    # A new rule has none yet: its line is what this test says it got.
    assert make_partition(rule, fixed, 20, 3).hash()[:16] == GOLDEN.get(rule)


@pytest.mark.parametrize("rule", DEALING)
def test_pooled_uses_train_and_test_samples(rule):
    p = make_partition(rule, OFFICIAL, 10, 0, test_split="pooled", test_fraction=0.2)
    assert p.train.idx.max() >= 2000
    assert p.test.idx.min() < 2000
    sizes = p.sizes("train") + p.sizes("test")
    assert sizes.sum() > (1000 if rule in ("spfl", "pfedla_fig5") else 2300)  # some stay undealt
    assert p.sizes("test").tolist() == [held_out(0.2, size) for size in sizes]


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.equal_sizes])
@pytest.mark.parametrize("split", ["official", "pooled"])
def test_caps_are_exact_for_rules_of_equal_sizes(rule, split):
    options = {"test_split": split, "train_samples": 50, "test_samples": 10}
    p = make_partition(rule, OFFICIAL, 20, 0, **options)
    assert p.sizes("train").tolist() == [50] * 20
    assert p.sizes("test").tolist() == [10] * 20
    with pytest.raises(InputError, match=r"train_samples must be at most .*, got 5000"):
        make_partition(rule, OFFICIAL, 20, 0, test_split=split, train_samples=5000)


def test_a_cap_keeps_a_part_of_what_the_client_holds():
    uncapped = make_partition("dirichlet", POOLED, 10, 0)
    capped = make_partition("dirichlet", POOLED, 10, 0, train_samples=60, test_samples=7)
    assert capped.sizes().tolist() == np.minimum(uncapped.sizes(), 60).tolist()
    assert capped.sizes("test").tolist() == np.minimum(uncapped.sizes("test"), 7).tolist()
    for split in ("train", "test"):
        for i in range(10):
            assert set(capped.client(split, i)) <= set(uncapped.client(split, i))


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 40), seed=st.integers(0, 99), test=st.sampled_from([0, 130]))
def test_iid_sizes_and_coverage(clients, seed, test):
    p = make_partition("iid", toy(523, test), clients, seed)
    sizes = p.sizes("train") + (0 if test else p.sizes("test"))
    assert sizes.tolist() == [523 // clients] * clients
    if test:
        assert p.sizes("test").tolist() == [130 // clients] * clients


@settings(max_examples=40, deadline=None)
@given(
    clients=st.integers(1, 40),
    classes=st.integers(1, 10),
    seed=st.integers(0, 10**6),
    test=st.sampled_from([0, 800]),
    balanced=st.booleans(),
)
def test_pathological_class_sets(clients, classes, seed, test, balanced):
    dataset = toy(3000, test, balanced=balanced, seed=8)
    try:
        p = make_partition("pathological", dataset, clients, seed, classes_per_client=classes)
    except InputError as error:
        assert not balanced, error
        assert "clients of" in str(error) or "leaves no test sample" in str(error)
        return
    held, tested = counts(p, dataset), counts(p, dataset, "test")
    for dealt in (held, tested) if test else (held + tested,):
        assert np.all((dealt > 0).sum(axis=1) == classes)
        assert len(np.unique(dealt[dealt > 0])) == 1  # the same number for every client and class
        used = (dealt > 0).sum(axis=0)
        assert used.max() - used.min() <= 1
    if not test:  # a quarter of every class, to the nearest sample
        assert len({*p.sizes("test")}) == 1
        assert np.ptp(tested[held + tested > 0]) <= 1
        if (held + tested).max() > 1:
            assert held[held + tested > 0].min() >= 1


def test_pathological_leaves_out_classes_that_never_occur():
    y = np.repeat([0, 2, 5], 40)
    dataset = dataset_from_arrays("gaps", np.zeros((120, 1)), y, num_classes=7)
    held = counts(make_partition("pathological", dataset, 6, 0), dataset)
    assert np.flatnonzero(held.sum(axis=0)).tolist() == [0, 2, 5]
    with pytest.raises(
        InputError, match=r"classes_per_client must be a whole number in 1\.\.3, got 4"
    ):
        make_partition("pathological", dataset, 6, 0, classes_per_client=4)


def test_pathological_refuses_what_a_class_cannot_serve():
    with pytest.raises(
        InputError, match="500 clients of 5 classes need 250 samples of class 0, but there are 200"
    ):
        make_partition("pathological", POOLED, 500, 0, classes_per_client=5)
    with pytest.raises(InputError, match="need 80 test samples of class 0, but there are 40"):
        make_partition("pathological", OFFICIAL, 400, 0)


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        ("dirichlte", {}, "Unknown partition rule 'dirichlte'. Did you mean 'dirichlet'"),
        (
            "dirichlet",
            {"aplha": 1},
            "option of partition rule 'dirichlet' 'aplha'. Did you mean 'al",
        ),
        ("iid", {"alpha": 1}, "Unknown option of partition rule 'iid' 'alpha'"),
        ("dirichlet", {"alpha": 0}, "alpha must be a finite number above 0, got 0"),
        ("dirichlet", {"alpha": "0.1"}, "alpha must be a finite number above 0, got '0.1'"),
        ("dirichlet", {"min_size": 0}, "min_size must be a whole number of at least 1, got 0"),
        ("dirichlet", {"max_retries": -1}, "must be a whole number of at least 0, got -1"),
        ("pathological", {"classes_per_client": 11}, "a whole number in 1..10, got 11"),
        ("grouped", {"groups": 21}, "groups must be a whole number in 1..20, got 21"),
        (
            "grouped",
            {"dominant_share": 1.5},
            "dominant_share must be a number from 0 to 1, got 1.5",
        ),
        ("grouped", {"dominant": "sample"}, "Unknown dominant 'sample'. Did you mean 'sampled'"),
        (
            "grouped",
            {"dominant": "sampled", "dominant_classes": 11},
            "dominant_classes must be a whole number in 1..10, got 11",
        ),
        ("iid", {"test_split": "offical"}, "Unknown test_split 'offical'. Did you mean 'official'"),
        ("iid", {"test_split": "official"}, "'toy' has no official test samples: test_split must"),
        ("iid", {"test_fraction": 1.0}, "test_fraction must be a number at least 0 and below 1"),
        ("iid", {"train_samples": 0}, "train_samples must be a whole number of at least 1, got 0"),
        ("iid", {"test_samples": 1000}, "test_samples must be at most 25 here, got 1000"),
    ],
)
def test_refusals(rule, options, message):
    with pytest.raises(InputError, match=message):
        make_partition(rule, POOLED, 20, 0, **options)


@pytest.mark.parametrize("rule", DEALING)
def test_more_clients_than_samples(rule):
    with pytest.raises(InputError, match="2001 clients can't share 2000 samples: at most 2000"):
        make_partition(rule, POOLED, 2001, 0)
    with pytest.raises(InputError, match="401 clients can't share 400 test samples: at most 400"):
        make_partition(rule, OFFICIAL, 401, 0, test_split="official")


@pytest.mark.parametrize(
    ("clients", "seed", "message"),
    [
        (0, 0, "num_clients must be a whole number of at least 1"),
        (2, -1, "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_bad_numbers(clients, seed, message):
    with pytest.raises(InputError, match=message):
        make_partition("iid", POOLED, clients, seed)


def test_options_are_discoverable():
    assert rule_options("dirichlet") == {
        "alpha": 0.1,
        "min_size": 10,
        "max_retries": 100,
        "test_split": "auto",
        "test_fraction": 0.25,
        "train_samples": None,
        "test_samples": None,
    }
    assert rule_options("spfl")["test_fraction"] == 0.2
    assert rule_options("pfedla_noniid1")["test_fraction"] == 0.3
    for rule in RULES.values():
        assert inspect.getdoc(rule.plan)
    with pytest.raises(InputError, match="Unknown partition rule"):
        rule_options("none")


def test_numpy_numbers_are_accepted():
    p = make_partition("dirichlet", POOLED, np.int64(5), np.int32(1), alpha=np.float32(0.5))
    assert json.loads(json.dumps(p.options))["alpha"] == 0.5
    assert p.hash() == make_partition("dirichlet", POOLED, 5, 1, alpha=0.5).hash()


def test_options_from_text():
    defaults = rule_options("pfedla_noniid2")
    text = {
        "dominant_share": "0.4",
        "allow_overlap": "True",
        "samples_per_client": "50",
        "test_split": "auto",
    }
    parsed = parse_options(text, defaults, "option")
    assert parsed == {
        "dominant_share": 0.4, "allow_overlap": True, "samples_per_client": 50, "test_split": "auto"
    }  # fmt: skip
    assert parse_options({"samples_per_client": "none"}, defaults, "option") == {
        "samples_per_client": None
    }
    for name, value, message in (
        ("dominant_share", "x", "dominant_share must be a number, got 'x'"),
        ("allow_overlap", "2", "allow_overlap must be true or false, got '2'"),
        ("dominant_classes", "2.5", "dominant_classes must be a whole number, got '2.5'"),
        ("dominant_shaer", "1", "Unknown option 'dominant_shaer'. Did you mean 'dominant_share'"),
    ):
        with pytest.raises(InputError, match=message):
            parse_options({name: value}, defaults, "option")
