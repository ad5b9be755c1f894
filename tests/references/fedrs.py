"""FedRS: a restricted softmax (Li and Zhan, KDD 2021)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, cross_entropy, logits, scale, subtract


def factors_of(counts, alpha, factors):
    """s_c of every class of one client, [C]."""
    most = max(counts)
    if factors == "missing":
        return np.array([1.0 if n > 0 else alpha for n in counts])
    return np.array([alpha + (1.0 - alpha) * n / most for n in counts])


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
    alpha=0.5,
    factors="shares",
):
    """FedAvg whose clients multiply the logits of their loss by factors of their classes.

    Args:
      initial, rounds, x, y, sizes, cohorts, batches, learning_rate: as in `fedavg.run`.
      clients: [{"samples": indices of the client's training samples}].
      alpha: the factor of classes without samples.
      factors: "shares" or "missing".

    Returns:
      After every round, {"global": model}.
    """
    model, history = initial, []
    classes = len(initial["head"]["bias"])
    for t in range(rounds):
        trained = []
        for i in cohorts[t]:
            counts = np.bincount(y[clients[i]["samples"]], minlength=classes)
            factor, own = factors_of(counts, alpha, factors), model
            for batch in batches[t][i]:
                _, slope = cross_entropy(factor * logits(own, x[batch]), y[batch])
                gradient = backward(own, x[batch], factor * slope)
                own = subtract(own, scale(learning_rate[t], gradient))
            trained.append(own)
        if trained:
            model = average(trained, sizes, list(cohorts[t]))
        history.append({"global": model})
    return history
