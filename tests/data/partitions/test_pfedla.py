"""pFedLA's rules: the paper's non-IID splits and its figures."""

import itertools

import numpy as np
import pytest

from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.utils.errors import InputError
from tests.data.partitions.pools import CIFAR10, all_counts, toy


@pytest.mark.parametrize("clients", [10, 100])
@pytest.mark.parametrize("overlap", [False, True])
def test_pfedla_noniid(clients, overlap):
    for rule, classes in (("pfedla_noniid1", 4), ("pfedla_noniid2", 10)):
        p = make_partition(rule, CIFAR10, clients, 0, allow_overlap=overlap)
        assert p.allow_overlap is overlap
        assert p.options["samples_per_client"] == 600
        assert set(p.sizes()) == {420}
        assert set(p.sizes("test")) == {180}
        held = all_counts(p, CIFAR10)
        assert np.all((held > 0).sum(axis=1) == classes)
        for row, dominant in zip(held, p.options["class_sets"], strict=True):
            if rule == "pfedla_noniid1":
                assert row[dominant].tolist() == [150] * 4
            else:
                assert row[dominant].tolist() == [150] * 2
                assert set(np.delete(row, dominant)) <= {37, 38}
        used = np.bincount(np.concatenate(p.options["class_sets"]), minlength=10)
        assert used.max() - used.min() <= 1
        shared, leaked = p.overlaps()
        assert leaked == 0
        assert (shared > 0) is overlap


def test_pfedla_figure_5():
    for seed in range(10):
        p = make_partition("pfedla_fig5", CIFAR10, 8, seed)
        target, twin, similar, *others = map(set, p.options["class_sets"])
        assert len(target) == 4
        assert target == twin
        assert len(target & similar) == 3
        assert all(len(other) == 4 and len(other & target) <= 2 for other in others)
        assert p.options["roles"] == ["target", "twin", "similar", *["other"] * 5]
        assert np.sum(all_counts(p, CIFAR10) > 0, axis=1).tolist() == [4] * 8
    with pytest.raises(InputError, match="num_clients must be a whole number of at least 3, got 2"):
        make_partition("pfedla_fig5", CIFAR10, 2, 0)
    with pytest.raises(InputError, match=r"must be a whole number in 2\.\.8, got 9"):
        make_partition("pfedla_fig5", CIFAR10, 8, 0, classes_per_client=9)
    make_partition("pfedla_fig5", CIFAR10, 8, 0, classes_per_client=8)


def test_pfedla_figure_6():
    p = make_partition("pfedla_fig6", CIFAR10, 8, 0)
    sets = [set(row) for row in p.options["class_sets"]]
    assert sets[0] == {0, 1, 2, 3}
    assert all(len(a & b) == 3 for a, b in itertools.pairwise(sets))
    assert set(p.sizes()) == {420}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("pfedla_fig5", "classes for rule 'pfedla_fig5' must be at least 4, got 3"),
        ("pfedla_fig6", "classes_per_client must be a whole number in 1..3, got 4"),
    ],
)
def test_pfedla_figures_of_three_classes(rule, message):
    with pytest.raises(InputError, match=message):
        make_partition(rule, toy(900, classes=3), 8, 0)
