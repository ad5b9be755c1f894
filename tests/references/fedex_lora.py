"""FedEx-LoRA: an exact mean of products of adapters (Singhal et al., ACL 2025)."""

from tests.references.adapters import mean_product, sgd, whole
from tests.references.averaging import shares
from tests.references.network import combine


def run(s, *, base, factor=1.0, weighting="uniform"):
    """FedAvg of the factors; what the product of the means lacks is added to the base.

    Args:
      base: the hidden layer's frozen kernel and bias.
      factor: alpha / rank.

    Returns:
      After every round, {"global": adapters and head, "base": kernel, "whole": the plain network}.
    """
    model, history = s.initial, []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if cohort:
            rate = s.learning_rate[t]
            trained = [sgd(base, model, s.batches[t][i], s.x, s.y, rate, factor) for i in cohort]
            weights = shares(s.sizes, cohort, weighting)
            model = combine(weights, trained)
            rest = mean_product(weights, trained) - mean_product([1.0], [model])
            base = {**base, "kernel": base["kernel"] + factor * rest}
        known = {"global": model, "base": base["kernel"], "whole": whole(base, model, factor)}
        history.append(known)
    return history
