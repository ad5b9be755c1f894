"""The rule `grouped`: blocks of classes, sampled dominant classes, equal sizes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import POOLED, counts, toy


def test_grouped_contiguous_blocks():
    dataset = toy(20000, 4000)
    p = make_partition("grouped", dataset, 20, 0, train_samples=300)
    assert p.options["client_groups"] == [i // 5 for i in range(20)]
    assert p.sizes().tolist() == [300] * 20
    assert p.sizes("test").tolist() == [200] * 20
    blocks = [[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8, 9]]
    for split, size in (("train", 300), ("test", 200)):
        held = counts(p, dataset, split)
        for i in range(20):
            inside = held[i, blocks[i // 5]].sum()
            assert inside >= 0.8 * size
            # The uniform fifth puts about 30 % of itself in the block too.
            assert abs(inside / size - 0.86) < 0.06
            assert held[i, blocks[i // 5]].min() >= 0.08 * size  # a mixture, not the next slice
    group = counts(p, dataset)[:5].sum(axis=0)
    assert abs(group[0] / group[2] - 2) < 0.6  # the boundary class is halved: 2.5 classes a group


@pytest.mark.parametrize("share", [0.0, 0.8, 1.0])
def test_grouped_sampled_dominant_classes(share):
    dataset = toy(20000, 4000)
    p = make_partition(
        "grouped", dataset, 20, 0, dominant="sampled", dominant_share=share, train_samples=300
    )
    sets = p.options["dominant_sets"]
    assert [len(set(row)) for row in sets] == [3] * 4
    used = np.bincount(np.concatenate(sets), minlength=10)
    assert used.max() - used.min() <= 1
    held = counts(p, dataset)
    assert held.sum(axis=1).tolist() == [300] * 20
    for i in range(20):
        row = held[i, sets[p.options["client_groups"][i]]]
        assert row.sum() >= 300 * share
        if share == 1:
            assert row.tolist() == [100] * 3
    assert len(set(p.sizes("test"))) == 1


def test_grouped_sampled_rotates_what_does_not_divide():
    options = {"groups": 1, "dominant_share": 1, "dominant": "sampled", "test_fraction": 0}
    p = make_partition("grouped", POOLED, 6, 0, **options)
    # 3 classes of 200 for 6 clients: 100 each is 33, 33 and 34, so all 600 fit only by turns.
    assert p.sizes().tolist() == [100] * 6


def test_grouped_remainder_goes_to_the_last_group():
    p = make_partition("grouped", POOLED, 11, 0, groups=4)
    assert p.options["client_groups"] == [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3]
    assert len(set(p.sizes())) == 1


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 30),
    groups=st.integers(1, 6),
    share=st.floats(0, 1),
    dominant=st.sampled_from(["contiguous", "sampled"]),
    dominant_classes=st.integers(1, 10),
    test=st.sampled_from([0, 600]),
)
def test_grouped_has_equal_sizes(clients, groups, share, dominant, dominant_classes, test):
    options = {"dominant_share": share, "dominant": dominant}
    options |= {"dominant_classes": dominant_classes} if dominant == "sampled" else {}
    p = make_partition(
        "grouped", toy(2000, test), clients, 0, groups=min(groups, clients), **options
    )
    assert len(set(p.sizes("train"))) == len(set(p.sizes("test"))) == 1
    assert p.sizes("train").min() >= 1


def test_grouped_refuses_when_the_dominant_classes_run_out():
    with pytest.raises(InputError, match="too few samples of the dominant classes for 900 clients"):
        make_partition("grouped", POOLED, 900, 0, groups=1, dominant="sampled", dominant_classes=1)
