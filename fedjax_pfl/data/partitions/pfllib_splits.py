"""PFLlib's `pat` and `exdir`; its `dir` is the rule `dirichlet`."""

import numpy as np

from fedjax_pfl.data.partitions.dealing import Samples, deal_alike
from fedjax_pfl.data.partitions.dirichlet import (
    check_alpha,
    check_min_size,
    cut,
    dirichlet_shares,
    nearest_draw,
)
from fedjax_pfl.data.partitions.rule_registry import DealPlan, register_rule
from fedjax_pfl.utils.errors import InputError, require, require_whole


@register_rule("pat", test_split="pooled")
def pat(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 2,
    balance: bool = False,
    min_size: int = 1,
) -> DealPlan:
    """A few classes per client in hidden groups, random sizes: PFLlib's `pat`, cwFedAVG.

    PFLlib's `separate_data`, used by cwFedAVG (its appendix C). The clients of a class are not
    random: class after class, the first ceil(N / C * k) clients that lack classes own it. So
    clients form groups with the same classes (20 clients, 10 classes, k = 2: five groups of four;
    100 classes, k = 10: ten groups of two), see `options["client_groups"]`. Unless `balance`,
    each owner of a class but the last gets a random number of its n samples, from a tenth of
    n / owners up to n / owners, and the last one the remainder.

    Classes may be unused if N * k isn't divisible by C; cwFedAVG's code fails then.

    Args:
      classes_per_client: k, 1..C (cwFedAVG: 2, CIFAR-100 10).
      balance: equal numbers of a class for its owners, the last of whom takes the remainder.
      min_size: an owner gets at least min_size / C samples of a class (cwFedAVG 1); refused with
        `balance`.
    """
    present = np.flatnonzero(samples.counts())
    each = require_whole("classes_per_client", classes_per_client, 1, len(present))
    require(isinstance(balance, bool), "balance", balance, "True or False")
    min_size = require_whole("min_size", min_size, 1)
    check_min_size(min_size, num_clients, samples)
    histogram = samples.counts()
    owners = -(-num_clients * each // len(present))
    quota = np.full(num_clients, each)
    counts = np.zeros((num_clients, samples.num_classes), np.int64)
    for c in present:
        chosen = np.flatnonzero(quota)[:owners]
        if len(chosen) == 0:
            break
        if histogram[c] < len(chosen):
            raise InputError(
                f"{num_clients} clients of {each} classes need {len(chosen)} {samples.what} of "
                f"class {c}, but there are {histogram[c]}: take fewer clients or classes."
            )
        mean = int(histogram[c]) / len(chosen)
        low = max(int(mean / 10), int(min_size / samples.num_classes), 1)
        high = max(int(mean), low + 1)  # exclusive
        if balance:
            sizes = np.full(len(chosen), int(mean))
        else:
            # Below the mean, so that at least the mean is left for the last owner.
            sizes = np.minimum(rng.integers(low, high, len(chosen)), int(mean))
        sizes[-1] = histogram[c] - sizes[:-1].sum()
        counts[chosen, c] = sizes
        quota[chosen] -= 1
    _, groups = np.unique(counts > 0, axis=0, return_inverse=True)
    order = {g: k for k, g in enumerate(dict.fromkeys(groups.tolist()))}
    resolved = {"client_groups": [order[g] for g in groups.tolist()]}
    unread = {"min_size": "balance=False"} if balance else {}
    return DealPlan(deal_alike(counts, histogram), resolved, unread=unread)


@register_rule("exdir", test_split="pooled")
def exdir(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 2,
    alpha: float = 100.0,
    min_size: int = 10,
    max_retries: int = 100,
) -> DealPlan:
    """A few random classes per client, each dealt to its owners by Dir(alpha).

    Extended Dirichlet (Li and Lyu, 2023). PFLlib's `exdir` draws classes independently, and an
    owner that holds |D|/N samples gets no more. Every client gets `classes_per_client` distinct
    classes at random, classes being used as evenly as possible; then each class is dealt to its
    owners in shares from Dir(alpha). The second step is repeated until every client has `min_size`
    samples; if no draw reaches it, owners first get the minimum in equal parts, and then shares of
    the remainder (`options["fallback_used"]`).

    Args:
      classes_per_client: 1..C.
      alpha: concentration, above 0 (PFLlib 100 here).
      min_size: fewest samples per client, before test samples are held out.
      max_retries: further draws after the first.
    """
    histogram = samples.counts()
    check_alpha(alpha)
    min_size = require_whole("min_size", min_size, 1)
    max_retries = require_whole("max_retries", max_retries, 0)
    sets = samples.class_sets(num_clients, "classes_per_client", classes_per_client, rng)
    owned = [np.flatnonzero(column) for column in samples.membership(sets).T]
    least = -(-min_size // classes_per_client)  # samples of each of its classes
    for c, owners in enumerate(owned):
        if histogram[c] < least * len(owners):
            raise InputError(
                f"{len(owners)} clients own class {c} and need {least} samples of it for min_size="
                f"{min_size}, but there are {histogram[c]} {samples.what}: take fewer clients or a "
                "smaller min_size."
            )

    def draw(reserved: int = 0) -> np.ndarray:
        counts = np.zeros((num_clients, samples.num_classes), np.int64)
        for c, owners in enumerate(owned):
            if len(owners):
                free = histogram[c] - reserved * len(owners)
                shares = dirichlet_shares(len(owners), alpha, rng)
                counts[owners, c] = reserved + cut(free, shares)
        return counts

    counts, reached = nearest_draw(draw, min_size, max_retries)
    if not reached:
        counts = draw(least)
    resolved = {"fallback_used": not reached, "class_sets": sets.tolist()}
    return DealPlan(deal_alike(counts, histogram), resolved)
