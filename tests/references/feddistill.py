"""Federated distillation: mean predictions by class are exchanged (Jeong et al., 2018)."""

import numpy as np

from tests.references.network import backward, cross_entropy, logits, scale, subtract


def softmax(scores):
    weight = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def train(params, batches, x, y, teacher, rate, weight):
    """(model, {class: mean softmax output in training}); `teacher` is {class: probabilities}."""
    seen = {}
    for batch in batches:
        scores = logits(params, x[batch])
        p = softmax(scores)
        _, slope = cross_entropy(scores, y[batch])
        for row, c in enumerate(y[batch]):
            seen.setdefault(int(c), []).append(p[row])
            if int(c) in teacher:
                slope[row] += weight * (p[row] - teacher[int(c)]) / len(batch)
        params = subtract(params, scale(rate, backward(params, x[batch], slope)))
    return params, {c: np.mean(rows, axis=0) for c, rows in seen.items()}


def teachers(sent, without=None):
    """{class: mean of what the clients sent}, without one of them."""
    known = {}
    for i, means in sent.items():
        for c, mean in means.items():
            if i != without:
                known.setdefault(c, []).append(mean)
    return {c: np.mean(rows, axis=0) for c, rows in known.items()}


def run(s, *, weight=1.0):
    """Local training with the others' mean predictions of the last round as teachers.

    Args:
      weight: of the distillation.

    Returns:
      After every round, "personalized": [N], "sent": {client: {class: mean}}, and "taught":
      {client: number of classes with a teacher}.
    """
    models, sent, history = [s.initial for _ in s.clients], {}, []
    for t in range(s.rounds):
        new, taught = {}, {}
        for i in s.cohorts[t]:
            teacher = teachers(sent, without=i)
            taught[i] = len(teacher)
            models[i], new[i] = train(
                models[i], s.batches[t][i], s.x, s.y, teacher, s.learning_rate[t], weight
            )
        sent = new or sent
        history.append({"personalized": list(models), "sent": sent, "taught": taught})
    return history
