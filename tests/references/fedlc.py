"""FedLC: logits calibrated by the client's class counts (Zhang et al., ICML 2022, section 4)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, logits, scale, subtract


def margins(counts, tau):
    """m_c = tau n_c^(-1/4), with n_c = 1e-8 for a class without samples."""
    return np.array([tau * (n if n > 0 else 1e-8) ** -0.25 for n in counts])


def slope_of(scores, y, shift, denominator):
    """The slope of the mean loss with respect to the logits, [n, C]."""
    slope = np.zeros_like(scores)
    for row, (score, label) in enumerate(zip(scores - shift, y, strict=True)):
        summed = [c for c in range(len(score)) if denominator == "all" or c != label]
        weight = np.exp(score[summed] - score[summed].max())
        slope[row, summed] = weight / weight.sum()
        slope[row, label] -= 1.0
    return slope / len(y)


def run(s, *, tau=1.0, denominator="all"):
    """FedAvg whose clients subtract margins from the logits of their loss.

    Args:
      tau: scale of the margins.
      denominator: "all" classes, or the "others" than the sample's.

    Returns:
      After every round, {"global": model}.
    """
    model, history = s.initial, []
    classes = len(s.initial["head"]["bias"])
    for t in range(s.rounds):
        trained = []
        for i in s.cohorts[t]:
            counts = np.bincount(s.y[s.clients[i]["samples"]], minlength=classes)
            own = model
            for batch in s.batches[t][i]:
                scores = logits(own, s.x[batch])
                slope = slope_of(scores, s.y[batch], margins(counts, tau), denominator)
                own = subtract(own, scale(s.learning_rate[t], backward(own, s.x[batch], slope)))
            trained.append(own)
        if trained:
            model = average(trained, s.sizes, list(s.cohorts[t]))
        history.append({"global": model})
    return history
