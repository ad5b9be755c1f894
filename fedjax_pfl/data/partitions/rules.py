"""General partition rules; importing this module registers all rules."""

from typing import Literal

import numpy as np

from fedjax_pfl.data.partitions import (  # noqa: F401 - importing them registers their rules
    by_column,
    dirichlet,
    feddwa_splits,
    pfedla_splits,
    pfllib_splits,
    spfl_splits,
    waffle_splits,
)
from fedjax_pfl.data.partitions.dealing import Samples, apportion, deal_counts, joined, largest
from fedjax_pfl.data.partitions.rule_registry import DealPlan, is_number, register_rule
from fedjax_pfl.utils.errors import InputError, require, require_name, require_whole


@register_rule("iid", equal_sizes=True, needs_classes=False)
def iid(samples: Samples, num_clients: int, rng: np.random.Generator) -> DealPlan:
    """Equal random shares of all samples; fewer than N samples are unused."""

    def deal(samples, rng):
        each = len(samples.idx) // num_clients
        drawn = rng.permutation(samples.idx)[: num_clients * each]
        return [[share] for share in drawn.reshape(num_clients, each)]

    return DealPlan(deal, {})


@register_rule("pathological", equal_sizes=True)
def pathological(
    samples: Samples, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2
) -> DealPlan:
    """A few classes per client, with as many samples of each: FedDWA (IJCAI 2023), appendix B.2.

    Every client gets `classes_per_client` distinct classes at random, classes being used as evenly
    as possible, and every client the same number of samples of each of its classes (a cap that
    doesn't divide by the classes leaves them equal +-1). The published code deals label-sorted
    shards instead, and PFLlib's split makes groups of identical clients: those are other rules.

    Args:
      classes_per_client: 1..C; the paper has 2 for CIFAR-10, 4 for EMNIST, 6 for CIFAR-100.
    """
    sets = samples.class_sets(num_clients, "classes_per_client", classes_per_client, rng)
    has = samples.membership(sets)

    def deal(samples, rng):
        owners, held = has.sum(axis=0), samples.counts()
        short = np.flatnonzero(held < owners)
        if len(short):
            c = short[0]
            raise InputError(
                f"{num_clients} clients of {classes_per_client} classes need {owners[c]} "
                f"{samples.what} of class {c}, but there are {held[c]}: take fewer clients or "
                "classes, or other samples with test_split."
            )
        used = owners > 0
        return deal_counts(samples.decks(rng), has * np.min(held[used] // owners[used]))

    return DealPlan(deal, {})


@register_rule("grouped", equal_sizes=True)
def grouped(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    groups: int = 4,
    dominant_share: float = 0.8,
    dominant: Literal["contiguous", "sampled"] = "contiguous",
    dominant_classes: int = 3,
) -> DealPlan:
    """Groups of clients with dominant classes, equal sizes: FedDWA's practical-1 (IJCAI 2023).

    Clients of a group follow one another (`options["client_groups"]`), the last group takes the
    remainder. `dominant_share` of a client's samples are dominant ones, the rest random over all
    classes.

    Args:
      groups: number of groups, 1..N.
      dominant_share: part of a client's samples that is of its group's dominant classes, 0..1.
      dominant: "contiguous", the published code: dominant samples are sorted by label and cut into
        one block per group, so 10 classes and 4 groups give 2.5 neighbouring classes each.
        "sampled", the text: `dominant_classes` random classes per group, in equal numbers; all
        clients are then as large as the most wanted class allows (`options["dominant_sets"]`).
      dominant_classes: classes per group when sampled (paper: CIFAR-10 3, CIFAR-100 20, Tiny 40);
        refused otherwise.
    """
    groups = require_whole("groups", groups, 1, num_clients)
    inside = is_number(dominant_share) and 0 <= dominant_share <= 1
    require(inside, "dominant_share", dominant_share, "a number from 0 to 1")
    require_name("dominant", dominant, ("contiguous", "sampled"))
    group_of = np.minimum(np.arange(num_clients) // (num_clients // groups), groups - 1)
    resolved = {"client_groups": group_of.tolist()}
    if dominant == "contiguous":
        resolved["dominant_classes"] = None
        unread = {"dominant_classes": "dominant='sampled'"}
        return DealPlan(_deal_blocks(group_of, dominant_share), resolved, unread=unread)
    sets = samples.class_sets(groups, "dominant_classes", dominant_classes, rng)
    return DealPlan(
        _deal_sets(sets[group_of], dominant_share), resolved | {"dominant_sets": sets.tolist()}
    )


def _deal_blocks(group_of: np.ndarray, share: float):
    num_clients = len(group_of)

    def deal(samples, rng):
        each = len(samples.idx) // num_clients
        favoured = int(share * each + 0.5)
        drawn = rng.permutation(len(samples.idx))[: num_clients * each]
        first, rest = np.split(drawn, [num_clients * favoured])
        first = first[np.argsort(samples.labels[first], kind="stable")]
        blocks = np.split(first, favoured * np.cumsum(np.bincount(group_of))[:-1])
        first = np.concatenate([rng.permutation(block) for block in blocks])
        first = samples.idx[first].reshape(num_clients, favoured)
        rest = samples.idx[rest].reshape(num_clients, each - favoured)
        return [list(strata) for strata in zip(first, rest, strict=True)]

    return deal


def _deal_sets(classes: np.ndarray, share: float):
    """Deal by each client's dominant classes [N, k]."""
    num_clients, k = classes.shape
    # The remainder of dominant samples over k goes to other classes in each client.
    turn = (np.arange(k) + np.arange(num_clients)[:, None]) % k

    def deal(samples, rng):
        held = samples.counts()

        def counts(each: int) -> np.ndarray:  # [N + 1, C]: dominant per client, all uniform ones
            favoured = int(share * each + 0.5)
            parts = np.zeros((num_clients + 1, samples.num_classes), np.int64)
            np.put_along_axis(parts[:-1], classes, favoured // k + (turn < favoured % k), axis=1)
            parts[-1] = apportion(num_clients * (each - favoured), held)
            return parts

        def fits(each: int) -> bool:  # no class runs out
            return bool(np.all(counts(each).sum(axis=0) <= held))

        low = largest(0, len(samples.idx) // num_clients, fits)
        if low == 0:
            raise InputError(
                f"There are too few {samples.what} of the dominant classes for {num_clients} "
                "clients: take fewer clients, more dominant_classes or dominant='contiguous'."
            )
        *dealt, rest = deal_counts(samples.decks(rng), counts(low))
        rest = rng.permutation(joined(rest)).reshape(num_clients, -1)
        return [[*strata, others] for strata, others in zip(dealt, rest, strict=True)]

    return deal
