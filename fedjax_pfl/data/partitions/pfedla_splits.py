"""pFedLA's two heterogeneous partitions, and the two layouts of its section 4.3."""

import math

import numpy as np

from fedjax_pfl.data.partitions.dealing import Samples, deal_counts, joined, largest
from fedjax_pfl.data.partitions.rule_registry import DealPlan, is_number, register_rule
from fedjax_pfl.utils.errors import InputError, require, require_whole

USUAL_SIZE = 600  # a hundredth of CIFAR-10, CIFAR-100 and MNIST's training samples


@register_rule("pfedla_noniid1", equal_sizes=True, test_split="pooled", test_fraction=0.3)
def pfedla_noniid1(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 4,
    samples_per_client: int | None = None,
    allow_overlap: bool = False,
) -> DealPlan:
    """Four random classes per client in equal numbers, equal clients: pFedLA's non-IID_1.

    pFedLA (CVPR 2022), section 4.1. Classes are used as evenly as possible; 70 % train, 30 % test.
    All clients have the same number of samples, whether there are 10 or 100 clients. The paper
    doesn't give it, and its accuracies with 100 clients suggest that clients share samples: with
    `allow_overlap` each client draws from all samples, so that one client's test sample may be
    another one's training sample.

    Args:
      classes_per_client: 1..C (CIFAR-100 12).
      samples_per_client: a client's samples before hold-out; None: 600, or as many as there are.
      allow_overlap: whether clients may hold the same samples.
    """
    sets = samples.class_sets(num_clients, "classes_per_client", classes_per_client, rng)
    return _of_sets(samples, sets, samples_per_client, allow_overlap)


@register_rule("pfedla_noniid2", equal_sizes=True, test_split="pooled", test_fraction=0.3)
def pfedla_noniid2(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    dominant_classes: int = 2,
    dominant_share: float = 0.5,
    samples_per_client: int | None = None,
    allow_overlap: bool = False,
) -> DealPlan:
    """All classes per client, two of them with more samples, equal clients: pFedLA's non-IID_2.

    pFedLA (CVPR 2022), section 4.1, which doesn't give their part. Dominant classes are random,
    used as evenly as possible, and of equal size; so are the other classes. Sizes, fractions and
    overlap as in `pfedla_noniid1`.

    Args:
      dominant_classes: 1..C-1 (CIFAR-100 6).
      dominant_share: part of a client's samples that is of its dominant classes, between 0 and 1.
      samples_per_client: a client's samples before hold-out; None: 600, or as many as there are.
      allow_overlap: whether clients may hold the same samples.
    """
    present = np.flatnonzero(samples.counts())
    require(len(present) > 1, "Number of classes for rule 'pfedla_noniid2'", len(present), "2+")
    each = require_whole("dominant_classes", dominant_classes, 1, len(present) - 1)
    inside = is_number(dominant_share) and 0 < dominant_share < 1
    require(inside, "dominant_share", dominant_share, "a number above 0 and below 1")
    sets = samples.class_sets(num_clients, "dominant_classes", each, rng)
    dominant = samples.membership(sets)
    others = np.zeros_like(dominant)
    others[:, present] = ~dominant[:, present]

    def counts(size: int, available: np.ndarray) -> np.ndarray:
        favoured = int(dominant_share * size + 0.5)
        first = _even(dominant, favoured, available, np.zeros_like(available))
        return first + _even(others, size - favoured, available, first.sum(axis=0))

    rest = 1 - dominant_share
    low = max(math.ceil((each - 0.5) / dominant_share), math.ceil((len(present) - each) / rest))
    return _plan(samples, counts, low, samples_per_client, allow_overlap, sets, dominant)


@register_rule("pfedla_fig5", equal_sizes=True, test_split="pooled", test_fraction=0.3)
def pfedla_fig5(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 4,
    samples_per_client: int | None = None,
    allow_overlap: bool = False,
) -> DealPlan:
    """A target, a twin with its classes, one with all but one of them, others: pFedLA's Fig. 5.

    pFedLA (CVPR 2022), section 4.3, with 8 clients. Client 0 is the target, client 1 has the same
    four random classes, client 2 three of them and another one. The others have random classes, of
    which at most two are the target's, so that the roles are distinct (`options["roles"]`). Sizes,
    fractions and overlap as in `pfedla_noniid1`.

    Args:
      classes_per_client: 2..C-2.
      samples_per_client: a client's samples before hold-out; None: 600, or as many as there are.
      allow_overlap: whether clients may hold the same samples.
    """
    require_whole("num_clients", num_clients, 3)
    present = np.flatnonzero(samples.counts())
    enough = len(present) >= 4
    require(enough, "Number of classes for rule 'pfedla_fig5'", len(present), "at least 4")
    each = require_whole("classes_per_client", classes_per_client, 2, len(present) - 2)
    target, outside = np.split(rng.permutation(present), [each])
    similar = np.concatenate([rng.permutation(target)[:-1], outside[:1]])
    # How many classes another client shares with the target: as in random sets, but at most each-2.
    ways = [math.comb(each, m) * math.comb(len(outside), each - m) for m in range(each - 1)]
    sets = [target, target, similar]
    for _ in range(num_clients - 3):
        shared = rng.choice(len(ways), p=np.array(ways) / sum(ways))
        own = rng.permutation(outside)[: each - shared]
        sets.append(np.concatenate([rng.permutation(target)[:shared], own]))
    plan = _of_sets(samples, np.sort(sets, axis=1), samples_per_client, allow_overlap)
    roles = ["target", "twin", "similar", *["other"] * (num_clients - 3)]
    return plan._replace(facts=plan.facts | {"roles": roles})


@register_rule("pfedla_fig6", equal_sizes=True, test_split="pooled", test_fraction=0.3)
def pfedla_fig6(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 4,
    samples_per_client: int | None = None,
    allow_overlap: bool = False,
) -> DealPlan:
    """Windows of four neighbouring classes that slide by one per client: pFedLA's Fig. 6.

    pFedLA (CVPR 2022), section 4.3, with 8 clients: client i has the classes i, i+1, i+2, i+3
    (modulo C), so neighbours share three. Sizes, fractions and overlap as in `pfedla_noniid1`.

    Args:
      classes_per_client: 1..C.
      samples_per_client: a client's samples before hold-out; None: 600, or as many as there are.
      allow_overlap: whether clients may hold the same samples.
    """
    present = np.flatnonzero(samples.counts())
    each = require_whole("classes_per_client", classes_per_client, 1, len(present))
    window = (np.arange(num_clients)[:, None] + np.arange(each)) % len(present)
    return _of_sets(samples, np.sort(present[window]), samples_per_client, allow_overlap)


def _of_sets(samples: Samples, sets: np.ndarray, size, allow_overlap) -> DealPlan:
    """Return a plan with equal numbers of each client's classes [N, k]."""
    allowed = samples.membership(sets)

    def counts(size: int, available: np.ndarray) -> np.ndarray:
        return _even(allowed, size, available, np.zeros_like(available))

    return _plan(samples, counts, sets.shape[1], size, allow_overlap, sets, allowed)


def _even(allowed: np.ndarray, total: int, available: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return `total` samples per client, in equal numbers (+-1) of `allowed` classes [N, C].

    A remainder is taken from the classes with most samples to spare.
    """
    each, extra = np.divmod(total, allowed.sum(axis=1))
    counts = allowed * each[:, None]
    spare = available - used - counts.sum(axis=0)
    more = np.zeros_like(allowed)
    for client in np.flatnonzero(extra):
        most = np.argsort(np.where(allowed[client], -spare, np.inf), kind="stable")
        more[client, most[: extra[client]]] = True
        spare[most[: extra[client]]] -= 1
    for c in np.flatnonzero(spare < 0):  # the last clients had no choice: let others make room
        for client in np.flatnonzero(more[:, c]):
            free = allowed[client] & ~more[client] & (spare > 0)
            if spare[c] < 0 and free.any():
                d = np.argmax(np.where(free, spare, 0))
                more[client, [c, d]] = False, True
                spare[[c, d]] += 1, -1
    return counts + more


def _plan(samples, counts, low: int, size, allow_overlap, sets, separate) -> DealPlan:
    """Return a plan of `counts(size, available)` [N, C] for the largest possible size.

    Args:
      samples: those to plan on.
      counts: samples per client and class, of clients of a size.
      low: smallest size with which the rule's numbers of classes are possible.
      size: the option `samples_per_client`.
      allow_overlap: whether clients draw independently.
      sets: [N, k] classes, for the options.
      separate: [N, C], classes that are strata of their own; the others are one stratum.
    """
    require(isinstance(allow_overlap, bool), "allow_overlap", allow_overlap, "True or False")

    def largest_size(samples: Samples, top: int) -> int:
        available = samples.counts()

        def fits(size: int) -> bool:
            requested = counts(size, available)
            needed = requested.max(axis=0) if allow_overlap else requested.sum(axis=0)
            return bool(np.all(needed <= available))

        return largest(0, top, fits)

    n = len(separate)
    wanted = USUAL_SIZE if size is None else require_whole("samples_per_client", size, 1)
    most = largest_size(samples, min(wanted, len(samples.idx)))
    if most < (low if size is None else max(wanted, low)):
        remedy = "" if allow_overlap else ", or set allow_overlap"
        if wanted < low:
            raise InputError(f"samples_per_client must be at least {low}, got {size}.")
        raise InputError(
            f"{n} clients need {low if size is None else wanted} {samples.what} each, but there "
            f"are enough for {most}: take fewer clients or samples_per_client{remedy}."
        )

    def deal(samples, rng):
        available = samples.counts()
        table = counts(largest_size(samples, most), available)
        decks = samples.decks(rng)
        if allow_overlap:
            dealt = [
                [rng.permutation(decks[c])[: row[c]] for c in np.flatnonzero(row)] for row in table
            ]
        else:
            dealt = deal_counts(decks, table)
        return [
            _strata(strata, np.flatnonzero(row), own, rng)
            for strata, row, own in zip(dealt, table, separate, strict=True)
        ]

    resolved = {"samples_per_client": most, "class_sets": sets.tolist()}
    return DealPlan(deal, resolved, allow_overlap=allow_overlap)


def _strata(dealt, classes: np.ndarray, own: np.ndarray, rng) -> list[np.ndarray]:
    """Return one stratum for each class of `own`, and one for all others."""
    mixed = [stratum for stratum, c in zip(dealt, classes, strict=True) if not own[c]]
    rest = [rng.permutation(joined(mixed))] if mixed else []
    return [stratum for stratum, c in zip(dealt, classes, strict=True) if own[c]] + rest
