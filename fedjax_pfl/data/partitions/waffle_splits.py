"""WAFFLE's label distributions, concept shift and sample shares."""

from typing import Literal

import numpy as np

from fedjax_pfl.data.partitions.dealing import Samples, deal_counts
from fedjax_pfl.data.partitions.rule_registry import DealPlan, register_rule
from fedjax_pfl.utils.errors import InputError, require, require_name, require_whole, unknown_name

# Hundredths of the labels of agent 0, and of the samples of each agent.
LABELS = {
    "A": (10,) * 10,
    "B": (25, 25, 25, 25, 0, 0, 0, 0, 0, 0),
    "C": (0, 0, 0, 10, 20, 40, 20, 10, 0, 0),
}
SHARES = {
    "A": (10,) * 10,
    "B": (21, 6, 11, 6, 11, 6, 16, 6, 11, 6),
    "C": (10, 10, 10, 10, 20, 5, 5, 10, 10, 10),
}


@register_rule("waffle")
def waffle(
    samples: Samples,
    num_clients: int,
    rng: np.random.Generator,
    *,
    distribution: Literal["A", "B", "C", "A*", "B*", "C*"] = "A",
    rotation: Literal["auto", "right", "left"] = "auto",
    sample_shares: Literal["A", "B", "C"] = "A",
    concept_shift: Literal["permutation", "transposition"] = "permutation",
    alice: int = 0,
) -> DealPlan:
    """Rotated label distributions of ten agents, with concept shift if starred: WAFFLE.

    WAFFLE (Beaussart et al., 2021), section 3 and appendix B. Agent i has the distribution's ten
    shares moved by i places: A is uniform, B has four labels of 25 %, C has 40, 20, 20, 10, 10 %.
    Each class is cut in proportion to the agents' shares of it, so the ten agents together
    use every sample and hold |D|/10 each (6,000 of MNIST, up to its uneven classes). The test
    samples are dealt by the same shares.

    A* and B* add concept shift: every agent but Alice sees permuted labels (`label_map`), in
    training and testing. `sample_shares` are those of the appendix's Table 4, whose label
    distribution "C" is B here; shares other than A leave some samples unused.

    Args:
      distribution: label distribution of the agents; "A*", "B*" and "C*" add concept shift. All
        but A and A* need 10 classes.
      rotation: "right" (section 3's words), "left" (as Table 2 lists C), or "auto": left for C.
      sample_shares: shares of the ten agents' samples in percent: "A" equal; "B" 21, 6, 11, 6, 11,
        6, 16, 6, 11, 6; "C" 10, but 20, 5, 5 for agents 4, 5, 6. B and C need 10 agents.
      concept_shift: each agent's change of labels in A*, B* and C*: a "permutation" of all, or a
        "transposition", which swaps two.
      alice: the agent whose labels do not change in A*, B* and C*.
    """
    starred = str(distribution).endswith("*")
    base = str(distribution).removesuffix("*")
    if base not in LABELS:
        raise unknown_name("distribution", distribution, ("A", "B", "C", "A*", "B*", "C*"))
    require_name("rotation", rotation, ("auto", "right", "left"))
    require_name("sample_shares", sample_shares, SHARES)
    require_name("concept_shift", concept_shift, ("permutation", "transposition"))
    alice = require_whole("alice", alice, 0, num_clients - 1)
    num_classes = samples.num_classes
    if base != "A":
        allowed = "10, as its distributions list ten shares ('A' takes any number)"
        require(num_classes == 10, "Number of classes for rule 'waffle'", num_classes, allowed)
    if sample_shares != "A":
        allowed = f"10 for sample_shares={sample_shares!r}, which lists ten shares"
        require(num_clients == 10, "num_clients", num_clients, allowed)
    step = -1 if rotation == "left" or (rotation == "auto" and base == "C") else 1
    labels = LABELS[base] if base != "A" else (10,) * num_classes
    sizes = SHARES[sample_shares] if sample_shares != "A" else (10,) * num_clients
    weights = np.array([s * np.roll(labels, step * i) for i, s in enumerate(sizes)])

    def deal(samples, rng):
        counts = _cut(samples.counts(), weights)
        empty = np.flatnonzero(counts.sum(axis=1) == 0)
        if len(empty):
            raise InputError(
                f"{len(samples.idx)} {samples.what} are too few for {num_clients} agents: agent "
                f"{empty[0]} would get none."
            )
        return deal_counts(samples.decks(rng), counts)

    label_map = None
    if starred:
        label_map = _label_map(num_clients, num_classes, concept_shift, alice, rng)
    star = "a starred distribution (A*, B*, C*)"
    unread = {} if starred else {"concept_shift": star, "alice": star}
    return DealPlan(deal, {}, label_map, unread=unread)


def _cut(available: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return each class in proportion to its weights [N, C], up to the amount that they need.

    Among agents with equal claims to a last sample, those that hold the least come first.
    """
    sums = weights.sum(axis=0)
    totals = available * sums // sums.max()
    counts = totals * weights // np.maximum(sums, 1)
    claims = totals * weights - counts * sums
    for c, rest in enumerate(totals - counts.sum(axis=0)):
        shares = counts.sum(axis=1) / weights.sum(axis=1)
        counts[np.lexsort((shares, -claims[:, c]))[:rest], c] += 1
    return counts


def _label_map(num_clients: int, num_classes: int, shift: str, alice: int, rng) -> np.ndarray:
    label_map = np.tile(np.arange(num_classes, dtype=np.int32), (num_clients, 1))
    for agent in np.flatnonzero(np.arange(num_clients) != alice):
        if shift == "permutation":
            label_map[agent] = rng.permutation(num_classes)
        else:
            pair = rng.permutation(num_classes)[:2]
            label_map[agent, pair] = label_map[agent, pair[::-1]]
    return label_map
