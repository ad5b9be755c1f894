"""Partition rules named Dir(alpha), with three distributions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedjax_pfl.data.partitions.dealing import Samples, apportion, deal_alike
from fedjax_pfl.data.partitions.rule_registry import DealPlan, is_number, register_rule
from fedjax_pfl.utils.errors import InputError, require, require_whole


@register_rule("dirichlet", test_split="pooled")
def dirichlet(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    min_size: int = 10,
    max_retries: int = 100,
) -> DealPlan:
    """Dir(alpha) per class over clients, with a size cap: PFLlib, cwFedAVG, FedDWA's practical-2.

    Class after class, shares of the clients are drawn from Dir(alpha); clients that already hold
    |D|/N samples or more get none and the others' shares are renormalized. The draw is repeated
    until every client has `min_size` samples. If no draw reaches it, the nearest one is used, and
    samples of the largest clients' largest classes move to clients with too few;
    `options["fallback_used"]` reports this. FedDWA (IJCAI 2023, B.2) takes test_fraction=0.2.

    As in PFLlib's code, cuts are rounded down and the last open client gets the remainder, mostly a
    single sample per class.

    Args:
      alpha: concentration, above 0 (FedDWA 0.07 in the text and 0.1 in the code; cwFedAVG 0.1).
      min_size: fewest samples per client, before test samples are held out (FedDWA 20, cwFedAVG 1,
        PFLlib since then 40 or half the mean size).
      max_retries: further draws after the first.
    """
    return _per_class(samples, num_clients, rng, alpha, min_size, max_retries, capped=True)


@register_rule("dirichlet_uncapped", test_split="pooled")
def dirichlet_uncapped(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    min_size: int = 10,
    max_retries: int = 100,
) -> DealPlan:
    """Dir(alpha) per class over clients, without a size cap: FL-bench, Flower's default.

    As `dirichlet`, but shares are dealt as drawn: sizes differ far more, and a client may have most
    of several classes. The text of FedDWA (IJCAI 2023, 5.1) describes its practical-2 like this.

    Args:
      alpha: concentration, above 0.
      min_size: fewest samples per client, before test samples are held out.
      max_retries: further draws after the first.
    """
    return _per_class(samples, num_clients, rng, alpha, min_size, max_retries, capped=False)


@register_rule("dirichlet_per_client", test_split="pooled")
def dirichlet_per_client(
    samples: Samples, num_clients: int, rng: np.random.Generator, *, alpha: float = 0.1
) -> DealPlan:
    """Dir(alpha) per client over classes, equal client sizes.

    After FedLab and Flower's InnerDirichletPartitioner, which deal sample by sample to random
    clients. Every client has floor(|D|/N) samples and draws its own shares of the classes from
    Dir(alpha).
    Clients are served in random order. If a class has run out, the client's other shares grow in
    proportion; if all its classes have, it takes any remaining samples. So late clients drift away
    from their draw: `options["drifted_clients"]` counts those with at least a tenth of their
    samples of other classes than drawn.

    Args:
      alpha: concentration, above 0.
    """
    check_alpha(alpha)
    histogram = samples.counts()
    present = np.flatnonzero(histogram)
    size = len(samples.idx) // num_clients
    left = histogram.copy()
    counts = np.zeros((num_clients, len(histogram)), np.int64)
    drifted = 0
    for client in rng.permutation(num_clients):
        shares = np.zeros(len(histogram))
        shares[present] = dirichlet_shares(len(present), alpha, rng)
        drawn = _apportion(size, shares)
        counts[client] = _serve(size, shares, left)
        left -= counts[client]
        drifted += np.maximum(drawn - counts[client], 0).sum() * 10 >= size
    return DealPlan(deal_alike(counts, histogram), {"drifted_clients": int(drifted)})


def _apportion(total: int, shares: np.ndarray) -> np.ndarray:
    return apportion(total, np.rint(shares * 2**30))


def _serve(size: int, shares: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return counts of `size` samples in proportion to `shares`, of classes with `left` samples."""
    served = np.zeros_like(left)
    for _ in range(2 * len(left)):  # each step meets the need or uses up a class
        rest = left - served
        open_shares = np.where(rest > 0, shares, 0)
        if np.rint(open_shares * 2**30).sum() == 0:
            open_shares = rest / max(rest.sum(), 1)
        wanted = _apportion(size - served.sum(), open_shares)
        served += np.minimum(wanted, rest)
        if served.sum() == size:
            break
    return served


def check_alpha(alpha: Any) -> None:
    require(is_number(alpha) and 0 < alpha < np.inf, "alpha", alpha, "a finite number above 0")


def check_min_size(min_size: int, num_clients: int, samples: Samples) -> None:
    """Raise `InputError` if there are too few samples for clients of that size."""
    total = len(samples.idx)
    if min_size * num_clients > total:
        raise InputError(
            f"min_size must be at most {total // num_clients} for {num_clients} clients that share "
            f"{total} {samples.what}, got {min_size}: take fewer clients, or that min_size."
        )


def dirichlet_shares(count: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Draw from Dir(alpha) over `count` parts, or its limit in case of over- or underflow."""
    shares = rng.dirichlet(np.full(count, float(alpha)))
    if not np.isclose(shares.sum(), 1):
        one = np.arange(count) == rng.integers(count)
        shares = one if alpha < 1 else np.full(count, 1 / count)
    return shares


def _per_class(samples, num_clients, rng, alpha, min_size, max_retries, capped: bool) -> DealPlan:
    check_alpha(alpha)
    min_size = require_whole("min_size", min_size, 1)
    max_retries = require_whole("max_retries", max_retries, 0)
    check_min_size(min_size, num_clients, samples)
    histogram = samples.counts()
    counts, reached = nearest_draw(
        lambda: _dirichlet_counts(histogram, num_clients, alpha, rng, capped), min_size, max_retries
    )
    _raise_to_minimum(counts, min_size)
    return DealPlan(deal_alike(counts, histogram), {"fallback_used": not reached})


def nearest_draw(
    draw: Callable[[], np.ndarray], min_size: int, max_retries: int
) -> tuple[np.ndarray, bool]:
    """Return (the first draw of counts [N, C] whose rows all reach `min_size`, True).

    Without such a draw: (the first of those that lack the fewest samples, False).
    """
    fewest = np.inf
    for _ in range(max_retries + 1):
        drawn = draw()
        lacking = np.maximum(min_size - drawn.sum(axis=1), 0).sum()
        if lacking < fewest:
            fewest, counts = lacking, drawn
        if lacking == 0:
            break
    return counts, bool(fewest == 0)


def cut(total: int, shares: np.ndarray) -> np.ndarray:
    """Return integers that sum to `total`: differences of the cumulated shares, rounded down."""
    ends = np.minimum(np.cumsum(shares) * total, total).astype(np.int64)
    ends[-1] = total
    return np.diff(ends, prepend=0)


def _dirichlet_counts(histogram, num_clients: int, alpha: float, rng, capped: bool) -> np.ndarray:
    counts = np.zeros((num_clients, len(histogram)), np.int64)
    for c in np.flatnonzero(histogram):
        # Renormalized parts of a Dirichlet vector are a Dirichlet vector of those parts, so drawing
        # only for the open clients is the same law, and the sum is never zero.
        limit = histogram.sum() / num_clients if capped else np.inf
        free = np.flatnonzero(counts.sum(axis=1) < limit)
        counts[free, c] = cut(histogram[c], dirichlet_shares(len(free), alpha, rng))
    return counts


def _raise_to_minimum(counts: np.ndarray, min_size: int) -> None:
    """Move samples, in place, until every row of `counts` [N, C] sums to `min_size` or more."""
    sizes = counts.sum(axis=1)
    for client in np.flatnonzero(sizes < min_size):
        while sizes[client] < min_size:
            # Each step meets a need or uses up a donor's class or a donor, so the loop ends.
            donor = np.argmax(sizes)
            c = np.argmax(counts[donor])
            moved = min(min_size - sizes[client], sizes[donor] - min_size, counts[donor, c])
            counts[[donor, client], c] += [-moved, moved]
            sizes[[donor, client]] += [-moved, moved]
