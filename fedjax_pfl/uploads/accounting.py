"""Privacy accounting on the host: epsilon of recorded releases, and noise for a target epsilon.

A `Release` is one application of the (subsampled) Gaussian mechanism, repeated. Their privacy loss
distributions are composed by `dp-accounting` (`pip install fedjax_pfl[privacy]`), which is imported
on first use.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fedjax_pfl.utils.errors import InputError, require

LEAST_NOISE, MOST_NOISE = 0.05, 2**13
# Steps of the discretized privacy loss; coarser ones are faster and round epsilon up by more. Up to
# FEW releases take the coarse one.
GRID, COARSE, FEW = 1e-4, 1e-3, 10_000


@dataclass(frozen=True)
class Release:
    """Gaussian releases of one kind.

    Attributes:
      noise_multiplier: z, the noise's standard deviation over the sensitivity.
      count: number of releases.
      sampling_rate: q, the probability that a unit (a sample, or a client) takes part in a release,
        independently of all others; 1 if it takes part in each.
      cut: (units, most): of the sampled ones of `units` units, at most `most` take part in a
        release, chosen at random; None without a limit.
    """

    noise_multiplier: float
    count: int
    sampling_rate: float = 1.0
    cut: tuple[int, int] | None = None


def epsilon(releases: Iterable[Release], delta: float) -> float:
    """Return the epsilon of all releases together at this delta.

    Units are added or removed (`ADD_OR_REMOVE_ONE`), and sampled by Poisson sampling.

    Args:
      releases: in any order; those with a count of 0 cost nothing.
      delta: in (0, 1).

    Returns:
      Infinity where a release has no noise.

    Raises:
      InputError: a value out of range, or dp-accounting is not installed.
    """
    require(0 < delta < 1, "dp_delta", delta, "in (0, 1)")
    return _epsilon(tuple(sorted(_merged(releases), key=repr)), float(delta))


def noise_for_each(
    target: float, delta: float, clients: Sequence[Sequence[Release]]
) -> list[float]:
    """Return the least factors on the noise of each client's releases that reach an epsilon.

    Raises:
      InputError: a value out of range, or no noise up to `MOST_NOISE` reaches it.
    """
    require(target > 0 and math.isfinite(target), "dp_epsilon", target, "a finite number above 0")
    return [_noise_for(float(target), delta, tuple(one)) for one in clients]


def training_releases(
    released: Mapping[str, Any], noise: float, client: int, gradients: int
) -> list[Release]:
    """Return what one client released in training with noisy gradients.

    Several gradients on one minibatch cost as much as one with less noise: k with a multiplier of
    z are one with z / sqrt(k).

    Args:
      released: result of `core.sample_privacy.releases`.
      noise: the noise multiplier of its gradients.
      client: its place.
      gradients: minibatch gradients that were counted; a part of a minibatch counts as one.
    """
    rate, size, k = released["rates"][client], released["sizes"][client], released["per_batch"]

    def cut(most: int | None) -> tuple[int, int] | None:
        return None if most is None else (size, min(size, most))

    made = [Release(noise * (1 / math.sqrt(k)), -(-gradients // k), rate, cut(released["most"]))]
    return made + [
        Release(noise, counts[client], rates[client], cut(most))
        for rates, most, counts in released["adapted"]
    ]


def upload_releases(released: Mapping[str, Any], noise: float, rounds: int) -> list[Release]:
    """Return what one client released by noisy uploads in so many rounds.

    A round draws its clients once, so k uploads with a multiplier of z cost as much as one with
    z / sqrt(k), which is more than k uploads of clients that are drawn each time.

    Args:
      released: result of `core.client_privacy.client_releases`.
      noise: the noise multiplier of its uploads.
      rounds: rounds in which it may have taken part.
    """
    each = noise * (1 / math.sqrt(max(released["per_round"], 1)))
    cut = released.get("cut")  # a list in files; not in those of 0.4
    return [Release(each, rounds, released["rate"], cut and tuple(cut))]


@lru_cache(maxsize=2**16)
def _noise_for(target: float, delta: float, releases: tuple[Release, ...]) -> float:
    count = sum(one.count for one in releases if one.sampling_rate)
    if count == 0:
        return 0.0

    def excess(z: float, **changes: Any) -> float:
        """Return log(epsilon / target), which is nearly a straight line in log z."""
        scaled = [
            replace(one, noise_multiplier=z * one.noise_multiplier, **changes) for one in releases
        ]
        return math.log(max(epsilon(scaled, delta), 1e-300) / target)

    uncut = partial(excess, cut=None)  # faster, and nearly the same

    low = high = 1.0
    while uncut(high) > 0:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise InputError(
                f"dp_epsilon must be reachable, got {target:g}: {count} releases cost more at a "
                f"noise multiplier of {MOST_NOISE:,}. Take fewer steps, or a larger epsilon."
            )
    while low >= LEAST_NOISE and uncut(low) <= 0:
        low, high = low / 2, low
    z = high
    if low >= LEAST_NOISE:
        from scipy.optimize import brentq  # slow import

        log_z: Any = brentq(lambda x: uncut(math.exp(x)), math.log(low), math.log(high), xtol=5e-5)
        z = float(np.float32(math.exp(log_z)))
    while excess(z) > 0:
        z = float(np.float32(z * (1 + 5e-5)))  # as programs hold it
    return z


def _merged(releases: Iterable[Release]) -> list[Release]:
    """Return releases of one kind counted together."""
    counts: dict[Any, int] = {}
    for one in releases:
        require(one.noise_multiplier >= 0, "noise_multiplier", one.noise_multiplier, "at least 0")
        require(0 <= one.sampling_rate <= 1, "sampling_rate", one.sampling_rate, "in [0, 1]")
        key = (float(one.noise_multiplier), float(one.sampling_rate), one.cut)
        counts[key] = counts.get(key, 0) + int(one.count)
    return [Release(z, n, q, cut) for (z, q, cut), n in counts.items() if n and q]


@lru_cache(maxsize=2**16)
def _epsilon(releases: tuple[Release, ...], delta: float) -> float:
    if not releases:
        return 0.0
    if any(one.noise_multiplier == 0 for one in releases):
        return math.inf
    dp = require_library()
    few = sum(one.count for one in releases) <= FEW
    step = COARSE if few else GRID
    ledger = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, step)
    for one in releases:
        z, q = one.noise_multiplier, one.sampling_rate
        event = dp.GaussianDpEvent(z)
        if q < 1 and one.cut is not None:
            units, most = one.cut
            event = dp.TruncatedSubsampledGaussianDpEvent(units, q, most, z)
        elif q < 1:
            event = dp.PoissonSampledDpEvent(q, event)
        ledger.compose(event, one.count)
    return float(ledger.get_epsilon(delta))


def require_library() -> Any:
    """Import dp-accounting.

    Raises:
      InputError: it is not installed.
    """
    try:
        import dp_accounting
        from dp_accounting import pld  # noqa: F401, a submodule that it does not import itself
    except ImportError as error:
        raise InputError(
            "Privacy accounting needs dp-accounting: pip install 'fedjax_pfl[privacy]'."
        ) from error
    return dp_accounting
