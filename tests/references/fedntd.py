"""FedNTD: distillation of the classes other than the true one (Lee et al., NeurIPS 2022)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, cross_entropy, logits, scale, subtract


def softmax(scores):
    weight = np.exp(scores - scores.max())
    return weight / weight.sum()


def distillation(teacher, student, y, tau):
    """(tau^2 mean KL over the rows, its slope with respect to the student's logits [n, C])."""
    total, slope = 0.0, np.zeros_like(student)
    for row, label in enumerate(y):
        others = [c for c in range(student.shape[1]) if c != label]
        p = softmax(teacher[row, others] / tau)
        q = softmax(student[row, others] / tau)
        total += tau**2 * np.sum(p * np.log(p / q))
        slope[row, others] = tau * (q - p)
    return total / len(y), slope / len(y)


def run(s, *, beta=1.0, tau=1.0, weighting="size"):
    """FedAvg whose clients also learn from the received model's logits of the wrong classes.

    Args:
      beta: weight of the distillation.
      tau: its temperature.
      weighting: of the average, by "size" or "uniform".

    Returns:
      After every round, {"global": model}.
    """
    model, history = s.initial, []
    for t in range(s.rounds):
        trained = []
        for i in s.cohorts[t]:
            own = model
            for batch in s.batches[t][i]:
                scores = logits(own, s.x[batch])
                _, slope = cross_entropy(scores, s.y[batch])
                _, apart = distillation(logits(model, s.x[batch]), scores, s.y[batch], tau)
                gradient = backward(own, s.x[batch], slope + beta * apart)
                own = subtract(own, scale(s.learning_rate[t], gradient))
            trained.append(own)
        if trained:
            model = average(trained, s.sizes, list(s.cohorts[t]), weighting)
        history.append({"global": model})
    return history
