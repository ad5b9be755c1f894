"""FedGC: heads that the server pushes apart (AAAI 2022)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, cross_entropy, logits, scale, subtract


def own_logits(model, x, held):
    """Logits of the client's own classes; the others are out of its softmax."""
    return np.where(held, logits(model, x), -np.inf)


def train(model, batches, x, y, rate, held):
    """SGD on the cross-entropy over the client's own classes."""
    for batch in batches:
        _, slope = cross_entropy(own_logits(model, x[batch], held), y[batch])
        model = subtract(model, scale(rate, backward(model, x[batch], slope)))
    return model


def corrections(kernels, held):
    """(the regularizer, its gradient for every head) of kernels [d, C] and bool [N, C]."""
    clients, classes = held.shape
    loss, slopes = 0.0, [np.zeros_like(kernel) for kernel in kernels]
    for c in range(classes):
        owners = [i for i in range(clients) if held[i, c]]
        if not owners:
            continue
        mean = np.mean([kernels[i][:, c] for i in owners], axis=0)
        own, terms = np.exp(mean @ mean), {}
        for j in range(clients):
            for k in range(classes):
                if held[j, k] and not held[j, c]:
                    terms[j, k] = np.exp(kernels[j][:, k] @ mean)
        total = own + sum(terms.values())
        loss -= len(owners) * np.log(own / total)
        for (j, k), term in terms.items():
            slopes[j][:, k] += len(owners) * term / total * mean
    return loss, slopes


def run(s, *, weight=1.0):
    """Bodies are averaged, and all heads are corrected by the server.

    Args:
      weight: of the regularizer.

    Returns:
      After every round, "body" and "personalized": [N]; "held": bool [N, C].
    """
    classes = len(s.initial["head"]["bias"])
    held = np.array([np.isin(np.arange(classes), s.y[c["samples"]]) for c in s.clients])
    body, heads = {"hidden": s.initial["hidden"]}, [s.initial["head"] for _ in s.clients]
    known, history = np.zeros_like(held), []
    for t in range(s.rounds):
        sent = []
        for i in s.cohorts[t]:
            start = {**body, "head": heads[i]}
            model = train(start, *s.work(t, i), held[i])
            heads[i], known[i] = model["head"], held[i]
            sent.append({"hidden": model["hidden"]})
        if sent:
            body = average(sent, s.sizes, s.cohorts[t])
            _, slopes = corrections([head["kernel"] for head in heads], known)
            rate = weight * s.learning_rate[t]
            heads = [
                {**head, "kernel": head["kernel"] - rate * slope}
                for head, slope in zip(heads, slopes, strict=True)
            ]
        personalized = [{**body, "head": head} for head in heads]
        history.append({"body": body, "personalized": personalized, "held": held})
    return history
