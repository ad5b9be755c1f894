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


def run(s, *, alpha=0.5, factors="missing"):
    """FedAvg whose clients multiply the logits of their loss by factors of their classes.

    Args:
      alpha: the factor of classes without samples.
      factors: "shares" or "missing".

    Returns:
      After every round, {"global": model}.
    """
    model, history = s.initial, []
    classes = len(s.initial["head"]["bias"])
    for t in range(s.rounds):
        trained = []
        for i in s.cohorts[t]:
            counts = np.bincount(s.y[s.clients[i]["samples"]], minlength=classes)
            factor, own = factors_of(counts, alpha, factors), model
            for batch in s.batches[t][i]:
                _, slope = cross_entropy(factor * logits(own, s.x[batch]), s.y[batch])
                gradient = backward(own, s.x[batch], factor * slope)
                own = subtract(own, scale(s.learning_rate[t], gradient))
            trained.append(own)
        if trained:
            model = average(trained, s.sizes, list(s.cohorts[t]))
        history.append({"global": model})
    return history
