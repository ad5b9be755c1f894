"""SPFL's and PLGA's partition into k_c classes per client."""

import numpy as np

from fedjax_pfl.data.partitions.dealing import Samples, deal_counts
from fedjax_pfl.data.partitions.rule_registry import DealPlan, register_rule
from fedjax_pfl.utils.errors import InputError, require, require_whole


@register_rule("spfl", test_split="train", test_fraction=0.2)
def spfl(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    classes_per_client: int = 6,
    iid: bool = False,
) -> DealPlan:
    """N equal parts of every class, parts of k_c classes per client: SPFL and PLGA, appendix B.

    Every class is shuffled and cut into N equal parts (a remainder is left out). Each client draws
    its own k_c classes and gets the next unused part of each; for `iid` one set of classes is drawn
    for all clients. Other parts stay unused. Only the official training samples are used, a fifth
    of every part for testing: with 10 clients 2,880 + 720 of MNIST (2,800 + 700 in the paper's
    table), 6,144 + 1,536 of EMNIST balanced, 2,400 + 600 of CIFAR-10 and -100.

    Args:
      classes_per_client: k_c, 1..C (MNIST and CIFAR-10 6, EMNIST 32, CIFAR-100 60; paper: >= 2).
      iid: whether all clients have the same classes.
    """
    present = np.flatnonzero(samples.counts())
    each = require_whole("classes_per_client", classes_per_client, 1, len(present))
    require(isinstance(iid, bool), "iid", iid, "True or False")
    rows = 1 if iid else num_clients
    sets = np.array([np.sort(rng.permutation(present)[:each]) for _ in range(rows)])
    sets = np.broadcast_to(sets, (num_clients, each))
    has = samples.membership(sets)

    def deal(samples, rng):
        part = samples.counts() // num_clients
        short = np.flatnonzero((part == 0) & has.any(axis=0))
        if len(short):
            c = short[0]
            raise InputError(
                f"Class {c} of {samples.counts()[c]} {samples.what} can't be cut into "
                f"{num_clients} parts, one for each client: take fewer clients."
            )
        return deal_counts(samples.decks(rng), has * part)

    return DealPlan(deal, {"class_sets": sets.tolist()})
