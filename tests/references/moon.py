"""MOON: model-contrastive federated learning (Li, He, Song, CVPR 2021, Algorithm 1)."""

import numpy as np

from tests.references import network
from tests.references.averaging import average
from tests.references.network import cross_entropy, scale, subtract


def cosines(z, others):
    """(the cosine of every row of z with that of `others` [n], its slope with respect to z).

    A row of zeros has cosine 0 and slope 0.
    """
    length = np.linalg.norm(z, axis=1, keepdims=True)
    product = length * np.linalg.norm(others, axis=1, keepdims=True)
    defined = product > 0
    product = np.where(defined, product, 1.0)
    cosine = np.where(defined, (z * others).sum(axis=1, keepdims=True) / product, 0.0)
    slope = others / product - cosine * z / np.where(defined, length, 1.0) ** 2
    return cosine[:, 0], np.where(defined, slope, 0.0)


def contrast(z, z_global, z_previous, tau):
    """(mean over the rows of -log softmax((cos(z, z_g), cos(z, z_p)) / tau)_g, its slope)."""
    near, to_near = cosines(z, z_global)
    far, to_far = cosines(z, z_previous)
    gap = (far - near) / tau
    losses = np.logaddexp(0.0, gap)
    weight = np.exp(gap - losses) / (tau * len(z))
    return float(losses.mean()), weight[:, None] * (to_far - to_near)


def loss_and_gradient(params, received, previous, x, y, mu, tau, form=network):
    """Cross-entropy + mu times the contrast of the features, and its gradient."""
    loss, slope = cross_entropy(form.logits(params, x), y)
    apart, feature_slope = contrast(
        *(form.features(model, x) for model in (params, received, previous)), tau
    )
    return loss + mu * apart, form.backward(params, x, slope, mu * feature_slope)


def run(s, *, mu=1.0, tau=0.5, form=network):
    """FedAvg whose clients keep features near the global model's, away from their last model's.

    Features are what the last hidden layer gives, or the projection of a network that has one.

    Args:
      mu: weight of the contrast.
      tau: its temperature.
      form: the network's functions `logits`, `features` and `backward`.

    Returns:
      After every round, "global": w, "previous": [N], every client's last trained model, None
      before it first takes part: the received model then stands in for it, and the term is a
      constant.
    """
    model, previous = s.initial, [None for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort, received = list(s.cohorts[t]), model
        for i in cohort:
            own = received
            last = received if previous[i] is None else previous[i]
            for batch in s.batches[t][i]:
                at = s.x[batch], s.y[batch]
                _, gradient = loss_and_gradient(own, received, last, *at, mu, tau, form)
                own = subtract(own, scale(s.learning_rate[t], gradient))
            previous[i] = own
        if cohort:
            model = average([previous[i] for i in cohort], s.sizes, cohort, "size")
        history.append({"global": model, "previous": list(previous)})
    return history
