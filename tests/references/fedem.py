"""FedEM: a mixture of shared learners with weights of each client (Marfoq et al., NeurIPS 2021)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import backward, cross_entropy, logits, scale, subtract


def log_probabilities(model, x):
    """[n, C] of one learner."""
    scores = logits(model, x)
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def posterior(learners, weights, x, y):
    """q [K, n]: which learner's distribution each sample is of."""
    q = np.zeros((len(learners), len(y)))
    for s in range(len(y)):
        for k, learner in enumerate(learners):
            q[k, s] = weights[k] * np.exp(log_probabilities(learner, x[s : s + 1])[0, y[s]])
        q[:, s] /= q[:, s].sum()
    return q


def loss(learners, weights, x, y):
    """The mean negative log-likelihood of the mixture."""
    likely = np.zeros(len(y))
    for weight, learner in zip(weights, learners, strict=True):
        likely += weight * np.exp(log_probabilities(learner, x)[np.arange(len(y)), y])
    return -np.log(likely).mean()


def train(learner, batches, q, x, y, rate):
    """SGD of one learner on the losses weighted by q [all samples]."""
    for batch in batches:
        _, slope = cross_entropy(logits(learner, x[batch]), y[batch])
        gradient = backward(learner, x[batch], q[batch][:, None] * slope)
        learner = subtract(learner, scale(rate, gradient))
    return learner


def run(s):
    """K learners on the server, and weights of each client, equal at first.

    Returns:
      After every round, "learners": K models, "weights": [N, K].
    """
    count = len(s.initial)
    learners, history = list(s.initial), []
    weights = [np.full(count, 1 / count) for _ in s.clients]
    for t in range(s.rounds):
        sent = [[] for _ in learners]
        weights = list(weights)
        for i in s.cohorts[t]:
            own = s.clients[i]["samples"]
            q = np.zeros((count, len(s.y)))
            q[:, own] = posterior(learners, weights[i], s.x[own], s.y[own])
            if len(own):
                weights[i] = q[:, own].mean(axis=1)
            for k, learner in enumerate(learners):
                sent[k].append(train(learner, s.batches[t][i], q[k], s.x, s.y, s.learning_rate[t]))
        if len(s.cohorts[t]):
            learners = [average(models, s.sizes, s.cohorts[t]) for models in sent]
        history.append({"learners": learners, "weights": np.array(weights)})
    return history
