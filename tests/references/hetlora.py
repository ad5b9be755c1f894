"""HetLoRA: adapters of clients' own ranks, pruned and weighted by norm (Cho et al., EMNLP 2024)."""

import numpy as np

from tests.references.adapters import sgd, whole
from tests.references.averaging import shares
from tests.references.network import combine


def run(s, *, base, ranks, factor=1.0, gamma=0.99, tail_weight=0.01, min_rank=1, weighting="norm"):
    """Truncated adapters are trained with a pulled tail, pruned, padded and averaged.

    Args:
      base: the hidden layer's frozen kernel and bias.
      ranks: the clients' ranks before the first round.
      factor: alpha / largest rank.
      gamma, tail_weight, min_rank: part of the rank that is kept, weight of the regularizer,
        floor.
      weighting: "norm" or "size".

    Returns:
      After every round, {"global": model, "ranks", "own": truncated models,
      "whole": the plain networks of the clients}.
    """
    model, ranks, history = s.initial, list(ranks), []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        trained = []
        for i in cohort:
            begun = cut(model, ranks[i])
            first = int(np.floor(gamma * ranks[i] + 1e-9))
            own = begun
            for batch in s.batches[t][i]:
                slopes = tail_slopes(own["hidden"], first)
                step = sgd(base, own, [batch], s.x, s.y, s.learning_rate[t], factor)
                hidden = {
                    name: step["hidden"][name] - s.learning_rate[t] * tail_weight * slopes[name]
                    for name in slopes
                }
                own = {**step, "hidden": hidden}
            if tail(own["hidden"], first) < tail(begun["hidden"], first):
                ranks[i] = min(max(first, min_rank), ranks[i])
            trained.append(cut(own, ranks[i]))
        if cohort:
            norms = [np.linalg.norm(m["hidden"]["lora_a"] @ m["hidden"]["lora_b"]) for m in trained]
            weights = [norm / sum(norms) for norm in norms]
            model = combine(shares(s.sizes, cohort) if weighting == "size" else weights, trained)
        own = [cut(model, rank) for rank in ranks]
        plain = [whole(base, one, factor) for one in own]
        history.append({"global": model, "ranks": list(ranks), "own": own, "whole": plain})
    return history


def cut(model, rank):
    """The model with its first columns of A and rows of B, padded with zeros."""
    a, b = model["hidden"]["lora_a"].copy(), model["hidden"]["lora_b"].copy()
    a[:, rank:], b[rank:] = 0, 0
    return {**model, "hidden": {"lora_a": a, "lora_b": b}}


def tail(adapter, first):
    """|A_tail| |B_tail|."""
    return np.linalg.norm(adapter["lora_a"][:, first:]) * np.linalg.norm(adapter["lora_b"][first:])


def tail_slopes(adapter, first):
    """The gradient of |A_tail| |B_tail|; that of a norm at zero is zero."""
    a, b = (np.zeros_like(adapter[name]) for name in ("lora_a", "lora_b"))
    a[:, first:], b[first:] = adapter["lora_a"][:, first:], adapter["lora_b"][first:]
    high, wide = np.linalg.norm(a), np.linalg.norm(b)
    return {
        "lora_a": a / high * wide if high > 0 else 0 * a,
        "lora_b": b / wide * high if wide > 0 else 0 * b,
    }
