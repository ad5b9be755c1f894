"""The rules that deal samples to clients; importing this module registers them."""

from typing import Literal

import numpy as np

from fedjax_pfl.data.partitions import (
    Plan,
    Samples,
    Strata,
    apportion,
    integer,
    is_number,
    joined,
    register_rule,
)
from fedjax_pfl.errors import InputError, require, unknown_name


def _deal_counts(decks: list[np.ndarray], counts: np.ndarray) -> list[Strata]:
    """Deals `counts` [clients, C] samples from the decks; one stratum per client and class."""
    dealt = [[] for _ in counts]
    for deck, ends in zip(decks, np.cumsum(counts, axis=0).T, strict=True):
        for strata, stratum in zip(dealt, np.split(deck, ends)[:-1], strict=True):
            if len(stratum):
                strata.append(stratum)
    return dealt


def _class_sets(num_classes: int, rows: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """Random sets of `each` distinct classes [rows, each]; classes are used evenly (+-1)."""
    quota = np.full(num_classes, rows * each // num_classes)
    quota[rng.permutation(num_classes)[: rows * each % num_classes]] += 1
    sets = []
    for left in range(rows, 0, -1):
        # Draws without replacement in proportion to what is left (Gumbel's trick). A class that
        # every remaining row must have comes first, so the last rows never run out of classes.
        score = np.log(np.maximum(quota, 1e-300)) + rng.gumbel(size=num_classes)
        score[quota == 0] = -np.inf
        score[quota == left] = np.inf
        sets.append(np.sort(np.argsort(-score, kind="stable")[:each]))
        quota[sets[-1]] -= 1
    return np.array(sets)


@register_rule("iid", equal_sizes=True)
def iid(samples: Samples, num_clients: int, rng: np.random.Generator) -> Plan:
    """Equal random shares of all samples; fewer than N samples are left over."""

    def deal(samples, rng):
        each = len(samples.idx) // num_clients
        drawn = rng.permutation(samples.idx)[: num_clients * each]
        return [[share] for share in drawn.reshape(num_clients, each)]

    return Plan(deal, {})


@register_rule("pathological", equal_sizes=True)
def pathological(
    samples: Samples, num_clients: int, rng: np.random.Generator, *, classes_per_client: int = 2
) -> Plan:
    """A few classes per client, with as many samples of each: FedDWA (IJCAI 2023), B.2 as worded.

    Every client gets `classes_per_client` distinct classes at random, classes being used as evenly
    as possible, and every client the same number of samples of each of its classes (a cap that
    doesn't divide by the classes leaves them equal +-1). The published code deals label-sorted
    shards instead, and PFLlib's split makes groups of identical clients: those are other rules.

    Args:
      classes_per_client: 1..C; the paper has 2 for CIFAR-10, 4 for EMNIST, 6 for CIFAR-100.
    """
    present = np.flatnonzero(samples.counts())
    each = integer("classes_per_client", classes_per_client, 1, len(present))
    has = np.zeros((num_clients, samples.num_classes), np.int64)
    sets = present[_class_sets(len(present), num_clients, each, rng)]
    np.put_along_axis(has, sets, 1, axis=1)

    def deal(samples, rng):
        owners, held = has.sum(axis=0), samples.counts()
        short = np.flatnonzero(held < owners)
        if len(short):
            c = short[0]
            raise InputError(
                f"{num_clients} clients of {each} classes need {owners[c]} {samples.what} of class "
                f"{c}, but there are {held[c]}: take fewer clients or classes, or other samples "
                "with test_split."
            )
        used = owners > 0
        return _deal_counts(samples.decks(rng), has * np.min(held[used] // owners[used]))

    return Plan(deal, {})


@register_rule("dirichlet", pooled=True)
def dirichlet(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    min_size: int = 10,
    max_retries: int = 100,
) -> Plan:
    """Dir(alpha) per class over clients, with a size cap: PFLlib, cwFedAVG, FedDWA's practical-2.

    Class after class, shares of the clients are drawn from Dir(alpha); clients that already hold
    |D|/N samples or more get none and the others' shares are renormalised. The whole draw is
    repeated until every client holds `min_size` samples. If no draw does, the nearest one is kept
    and samples of the largest clients, of their largest classes, move to those that lack some;
    `options["fallback_used"]` says so.

    Args:
      alpha: concentration, above 0 (FedDWA 0.07 in the text and 0.1 in the code).
      min_size: fewest samples per client, before test samples are held out (FedDWA 20).
      max_retries: further draws after the first.
    """
    require(is_number(alpha) and 0 < alpha < np.inf, "alpha", alpha, "a finite number above 0")
    min_size = integer("min_size", min_size, 1)
    max_retries = integer("max_retries", max_retries, 0)
    total, histogram = len(samples.idx), samples.counts()
    if min_size * num_clients > total:
        raise InputError(
            f"min_size must be at most {total // num_clients} for {num_clients} clients that share "
            f"{total} {samples.what}, got {min_size}."
        )
    fewest = np.inf
    for _ in range(max_retries + 1):
        drawn = _dirichlet_counts(histogram, num_clients, alpha, rng)
        lacking = np.maximum(min_size - drawn.sum(axis=1), 0).sum()
        if lacking < fewest:
            fewest, counts = lacking, drawn
        if lacking == 0:
            break
    _raise_to_minimum(counts, min_size)

    def deal(samples, rng):
        # The same cuts of every class, to the nearest sample: exact for the samples planned on.
        held, planned = samples.counts(), np.maximum(histogram, 1)
        ends = (2 * np.cumsum(counts, axis=0) * held + planned) // (2 * planned)
        dealt = _deal_counts(samples.decks(rng), np.diff(ends, axis=0, prepend=0))
        return [[rng.permutation(joined(strata))] for strata in dealt]

    return Plan(deal, {"fallback_used": bool(fewest > 0)})


def _dirichlet_counts(histogram, num_clients: int, alpha: float, rng) -> np.ndarray:
    counts = np.zeros((num_clients, len(histogram)), np.int64)
    for c in np.flatnonzero(histogram):
        # Renormalised parts of a Dirichlet vector are a Dirichlet vector of those parts, so drawing
        # for the open clients alone is the same law, and the sum is never zero.
        free = np.flatnonzero(counts.sum(axis=1) < histogram.sum() / num_clients)
        shares = rng.dirichlet(np.full(len(free), alpha))
        if not np.isclose(shares.sum(), 1):  # over- or underflow: take the limit
            one = np.arange(len(free)) == rng.integers(len(free))
            shares = one if alpha < 1 else np.full(len(free), 1 / len(free))
        ends = np.minimum(np.cumsum(shares) * histogram[c], histogram[c]).astype(np.int64)
        ends[-1] = histogram[c]
        counts[free, c] = np.diff(ends, prepend=0)
    return counts


def _raise_to_minimum(counts: np.ndarray, min_size: int) -> None:
    """Moves samples, in place, until every row of `counts` [N, C] sums to `min_size` or more."""
    sizes = counts.sum(axis=1)
    for client in np.flatnonzero(sizes < min_size):
        while sizes[client] < min_size:
            # Each step ends a need, a donor's class or a donor: it is bounded.
            donor = np.argmax(sizes)
            c = np.argmax(counts[donor])
            moved = min(min_size - sizes[client], sizes[donor] - min_size, counts[donor, c])
            counts[[donor, client], c] += [-moved, moved]
            sizes[[donor, client]] += [-moved, moved]


@register_rule("grouped", equal_sizes=True)
def grouped(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    groups: int = 4,
    share: float = 0.8,
    dominant: Literal["contiguous", "sampled"] = "contiguous",
    dominant_classes: int = 3,
) -> Plan:
    """Groups of clients with dominant classes, equal sizes: FedDWA's practical-1 (IJCAI 2023).

    Clients of a group follow one another (`options["client_groups"]`), the last group takes the
    remainder. A client's samples are `share` dominant ones and the rest random over all classes.

    Args:
      groups: number of groups, 1..N.
      share: part of a client's samples that is of its group's dominant classes, 0..1.
      dominant: "contiguous", the published code: dominant samples are sorted by label and cut into
        one block per group, so 10 classes and 4 groups give 2.5 neighbouring classes each.
        "sampled", the text: `dominant_classes` random classes per group, in equal numbers; all
        clients are then as large as the most wanted class allows (`options["dominant_sets"]`).
      dominant_classes: classes per group when sampled (paper: CIFAR-10 3, CIFAR-100 20, Tiny 40).
    """
    groups = integer("groups", groups, 1, num_clients)
    require(is_number(share) and 0 <= share <= 1, "share", share, "a number from 0 to 1")
    group_of = np.minimum(np.arange(num_clients) // (num_clients // groups), groups - 1)
    resolved = {"client_groups": group_of.tolist()}
    if dominant == "contiguous":
        return Plan(_deal_blocks(group_of, share), resolved | {"dominant_classes": None})
    if dominant != "sampled":
        raise unknown_name("dominant", dominant, ("contiguous", "sampled"))
    present = np.flatnonzero(samples.counts())
    each = integer("dominant_classes", dominant_classes, 1, len(present))
    sets = present[_class_sets(len(present), groups, each, rng)]
    return Plan(_deal_sets(sets[group_of], share), resolved | {"dominant_sets": sets.tolist()})


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
    """Deals by each client's dominant classes [N, k]."""
    num_clients, k = classes.shape
    # Who gets one more when the dominant samples don't divide by k: another class for every client.
    turn = (np.arange(k) + np.arange(num_clients)[:, None]) % k

    def deal(samples, rng):
        held = samples.counts()

        def counts(each: int) -> np.ndarray:  # [N + 1, C]: dominant per client, all uniform ones
            favoured = int(share * each + 0.5)
            parts = np.zeros((num_clients + 1, samples.num_classes), np.int64)
            np.put_along_axis(parts[:-1], classes, favoured // k + (turn < favoured % k), axis=1)
            parts[-1] = apportion(num_clients * (each - favoured), held)
            return parts

        low, high = 0, len(samples.idx) // num_clients
        while low < high:  # the largest size for which no class runs out
            middle = (low + high + 1) // 2
            if np.all(counts(middle).sum(axis=0) <= held):
                low = middle
            else:
                high = middle - 1
        if low == 0:
            raise InputError(
                f"There are too few {samples.what} of the dominant classes for {num_clients} "
                "clients: take fewer clients, more dominant_classes or dominant='contiguous'."
            )
        *dealt, rest = _deal_counts(samples.decks(rng), counts(low))
        rest = rng.permutation(joined(rest)).reshape(num_clients, -1)
        return [[*strata, others] for strata, others in zip(dealt, rest, strict=True)]

    return deal
