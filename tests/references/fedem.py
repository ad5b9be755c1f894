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


def run(initial, clients, rounds, *, x, y, sizes, cohorts, batches, learning_rate):
    """K learners on the server, and weights of each client, equal at first.

    Args:
      initial: the K learners before the first round.
      clients, rounds, x, y, sizes, cohorts, batches, learning_rate: as in `fedavg.run`; all
        learners see the same batches.

    Returns:
      After every round, "learners": K models, "weights": [N, K].
    """
    count = len(initial)
    learners, history = list(initial), []
    weights = [np.full(count, 1 / count) for _ in clients]
    for t in range(rounds):
        sent = [[] for _ in learners]
        weights = list(weights)
        for i in cohorts[t]:
            own = clients[i]["samples"]
            q = np.zeros((count, len(y)))
            q[:, own] = posterior(learners, weights[i], x[own], y[own])
            if len(own):
                weights[i] = q[:, own].mean(axis=1)
            for k, learner in enumerate(learners):
                sent[k].append(train(learner, batches[t][i], q[k], x, y, learning_rate[t]))
        if len(cohorts[t]):
            learners = [average(models, sizes, cohorts[t]) for models in sent]
        history.append({"learners": learners, "weights": np.array(weights)})
    return history
