"""FLoRA: stacked adapters that are merged into the base (Wang et al., NeurIPS 2024)."""

import numpy as np

from tests.references.adapters import sgd, whole
from tests.references.averaging import shares
from tests.references.network import combine


def run(
    initial,
    clients,
    rounds,
    *,
    x,
    y,
    sizes,
    cohorts,
    batches,
    learning_rate,
    base,
    drawn,
    factor=1.0,
):
    """Factors are stacked along the rank, the first ones times their weights, and merged.

    Args:
      initial: adapters and head before the first round.
      clients, rounds, x, y, sizes, cohorts, batches, learning_rate: as in `fedavg.run`.
      base: the hidden layer's frozen kernel and bias.
      drawn: after every round, the new adapters {"lora_a": [d, r], "lora_b": [r, h]}.
      factor: alpha / rank.

    Returns:
      After every round, {"global": adapters and head, "base": kernel, "whole": the plain network}.
    """
    model, history = initial, []
    for t in range(rounds):
        cohort = list(cohorts[t])
        if cohort:
            rate = learning_rate[t]
            trained = [sgd(base, model, batches[t][i], x, y, rate, factor) for i in cohort]
            weights = shares(sizes, cohort)
            pairs = list(zip(weights, trained, strict=True))
            tall = np.concatenate([p * one["hidden"]["lora_a"] for p, one in pairs], axis=1)
            wide = np.concatenate([one["hidden"]["lora_b"] for one in trained], axis=0)
            base = {**base, "kernel": base["kernel"] + factor * tall @ wide}
            model = combine(weights, trained)
        model = {**model, "hidden": drawn[t]}
        known = {"global": model, "base": base["kernel"], "whole": whole(base, model, factor)}
        history.append(known)
    return history
