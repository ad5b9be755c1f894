"""FLoRA: stacked adapters that are merged into the base (Wang et al., NeurIPS 2024)."""

import numpy as np

from tests.references.adapters import sgd, whole
from tests.references.averaging import shares
from tests.references.network import combine


def run(s, *, base, drawn, factor=1.0, ranks=None):
    """Factors are stacked along the rank, the first ones times their weights, and merged.

    Args:
      base: the hidden layer's frozen kernel and bias.
      drawn: after every round, the new adapters {"lora_a": [d, r], "lora_b": [r, h]}.
      factor: alpha / rank.
      ranks: each client's rank, the columns of A that it takes; None for all.

    Returns:
      After every round, {"global": adapters and head, "base": kernel, "whole": the plain network}.
    """
    model, history = s.initial, []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if cohort:
            rate = s.learning_rate[t]
            begun = {i: model if ranks is None else first_columns(model, ranks[i]) for i in cohort}
            trained = [sgd(base, begun[i], s.batches[t][i], s.x, s.y, rate, factor) for i in cohort]
            weights = shares(s.sizes, cohort)
            pairs = list(zip(weights, trained, strict=True))
            tall = np.concatenate([p * one["hidden"]["lora_a"] for p, one in pairs], axis=1)
            wide = np.concatenate([one["hidden"]["lora_b"] for one in trained], axis=0)
            base = {**base, "kernel": base["kernel"] + factor * tall @ wide}
            model = combine(weights, trained)
        model = {**model, "hidden": drawn[t]}
        known = {"global": model, "base": base["kernel"], "whole": whole(base, model, factor)}
        history.append(known)
    return history


def first_columns(model, rank):
    """The model whose factors are zero beyond a rank."""
    a, b = model["hidden"]["lora_a"].copy(), model["hidden"]["lora_b"].copy()
    a[:, rank:], b[rank:] = 0, 0
    return {**model, "hidden": {"lora_a": a, "lora_b": b}}
