"""FML: mutual learning of own models and meme models (Shen et al., 2020)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, cross_entropy, logits, scale, subtract


def softmax(scores):
    weight = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)


def gradient(params, teacher, x, y, weight):
    """Of weight CE + (1 - weight) mean KL(teacher || params); the teacher is fixed."""
    scores = logits(params, x)
    _, slope = cross_entropy(scores, y)
    apart = (softmax(scores) - softmax(logits(teacher, x))) / len(y)
    return backward(params, x, weight * slope + (1 - weight) * apart)


def train(own, meme, batches, x, y, rate, alpha, beta):
    """(v, w) after the steps, each from both models before it."""
    for batch in batches:
        of_own = gradient(own, meme, x[batch], y[batch], alpha)
        of_meme = gradient(meme, own, x[batch], y[batch], beta)
        own = subtract(own, scale(rate, of_own))
        meme = subtract(meme, scale(rate, of_meme))
    return own, meme


def run(s, *, alpha=0.5, beta=0.5, weighting="size"):
    """FedAvg of meme models beside an own model of every client.

    Args:
      alpha, beta: weights of the cross-entropy of own and meme models.
      weighting: of the average, "size" or "uniform".

    Returns:
      After every round, "global": w, "personalized": [N], the v_i.
    """
    model, own, history = s.initial, [s.initial for _ in s.clients], []
    for t in range(s.rounds):
        memes = []
        for i in s.cohorts[t]:
            own[i], meme = train(own[i], model, *s.work(t, i), alpha, beta)
            memes.append(meme)
        if memes:
            model = average(memes, s.sizes, list(s.cohorts[t]), weighting)
        history.append({"global": model, "personalized": list(own)})
    return history
