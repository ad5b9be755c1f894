"""FedAS: aligned bodies, averaged by Fisher information (CVPR 2024)."""

import numpy as np

from tests.references.network import (
    backward,
    combine,
    features,
    loss_and_gradient,
    scale,
    squared_norm,
    subtract,
)


def alignment(model, x, y, means):
    """(sum over the classes of a batch of the mean of (z - mu_c)^2, its gradient)."""
    z = features(model, x)
    loss, slope = 0.0, np.zeros_like(z)
    for c in np.unique(y):
        rows = y == c
        away = z[rows] - means[c]
        loss += (away**2).mean()
        slope[rows] = 2.0 * away / away.size
    classes = len(model["head"]["bias"])
    return loss, backward(model, x, np.zeros((len(y), classes)), slope)


def align(model, own, batches, x, y, samples, rate):
    """A received body, trained for the class means in the client's own body."""
    inner, labels = features(own, x[samples]), y[samples]
    means = {c: inner[labels == c].mean(axis=0) for c in np.unique(labels)}
    for batch in batches:
        _, gradient = alignment(model, x[batch], y[batch], means)
        model = {**subtract(model, scale(rate, gradient)), "head": model["head"]}
    return model


def fisher(model, batches, x, y):
    """The sum over minibatches of the squared norm of the loss's gradient."""
    return sum(squared_norm(loss_and_gradient(model, x[b], y[b])[1]) for b in batches)


def run(s, *, align_batches, fisher_batches, align_rate=0.01):
    """Bodies are aligned after download, and averaged by Fisher information after training.

    Args:
      align_batches: align_batches[t][i], those of the alignment.
      fisher_batches: [i], those of one pass over the client's samples.
      align_rate: learning rate of the alignment.

    Returns:
      After every round, "body": the server's, "personalized": [N], "weights": {client: weight}.
    """
    body = {"hidden": s.initial["hidden"]}
    own, history = [s.initial for _ in s.clients], []
    for t in range(s.rounds):
        values = {}
        for i in s.cohorts[t]:
            received = {**body, "head": own[i]["head"]}
            samples = s.clients[i]["samples"]
            aligned = align(received, own[i], align_batches[t][i], s.x, s.y, samples, align_rate)
            own[i] = s.train(aligned, t, i)
            values[i] = fisher(own[i], fisher_batches[i], s.x, s.y)
        weights = {i: value / sum(values.values()) for i, value in values.items()}
        if weights:
            sent = [{"hidden": own[i]["hidden"]} for i in weights]
            body = combine(list(weights.values()), sent)
        history.append({"body": body, "personalized": list(own), "weights": weights})
    return history
