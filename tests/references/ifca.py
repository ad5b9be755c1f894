"""IFCA, the iterative federated clustering algorithm (Ghosh et al., NeurIPS 2020, Algorithm 1)."""

import numpy as np

from tests.references.network import combine, loss_and_gradient, scale, subtract

BALANCED = {1: 0.0, 2: 0.35, 4: 0.1}  # the published code's shares


def choose(models, samples, x, y):
    """argmin_k of the mean loss of models[k] on a client's samples; ties to the lower number."""
    if len(samples) == 0:
        return 0
    return int(np.argmin([loss_and_gradient(model, x[samples], y[samples])[0] for model in models]))


def balanced(draws, clients, x, y, share=None):
    """The first of several sets of models of which each fits at least `share` of the clients best.

    Where none does, the set whose least chosen model is chosen most; ties to the earlier set.

    Args:
      draws: sets of K models.
      clients: dicts with "samples".
      share: by default 0.35 for two models and 0.1 for four, as published; 0.4 / K for other K > 1.
    """
    best, most = None, -1.0
    for models in draws:
        count = len(models)
        wanted = (BALANCED.get(count, 0.4 / count)) if share is None else share
        chosen = [choose(models, client["samples"], x, y) for client in clients]
        least = min(chosen.count(k) for k in range(count)) / len(clients)
        if least >= wanted:
            return models
        if least > most:
            best, most = models, least
    return best


def run(
    s, *, averaging="models", weighting="size", scored_by="train", groups=None, warmup_rounds=0
):
    """Every participant takes the model that fits it best; each model is the mean of its takers'.

    Args:
      s: its initial model is a list of K models.
      averaging: "models", or "gradients": theta_k <- theta_k - (eta / M) sum of the full gradients
        of its takers, M all participants; there is no local training then.
      weighting: of models, "size", n_i over the takers' sum, or "uniform" as published.
      scored_by: the samples by which the models to be scored are chosen, "train", or "test" as the
        published code does for MNIST and CIFAR.
      groups, warmup_rounds: in the first `warmup_rounds` rounds client i takes model groups[i]
        instead; the published code does so for 20 rounds with random groups.

    Returns:
      After every round, "personalized": [N models], chosen among the new ones, "choices": [N],
      "models": [K] and "clusters": {client: its model in this round}.
    """
    models = list(s.initial)
    split = {"train": "samples", "test": "test"}[scored_by]
    history = []
    for t in range(s.rounds):
        clusters = {
            i: groups[i] if t < warmup_rounds else choose(models, s.clients[i]["samples"], s.x, s.y)
            for i in s.cohorts[t]
        }
        renewed = list(models)
        for k, model in enumerate(models):
            takers = [i for i in s.cohorts[t] if clusters[i] == k]
            if not takers:
                continue
            if averaging == "gradients":
                samples = [s.clients[i]["samples"] for i in takers]
                slopes = [loss_and_gradient(model, s.x[own], s.y[own])[1] for own in samples]
                total = combine([1.0 / len(clusters)] * len(takers), slopes)
                renewed[k] = subtract(model, scale(s.learning_rate[t], total))
                continue
            trained = [s.train(model, t, i) for i in takers]
            parts = [s.sizes[i] if weighting == "size" else 1.0 for i in takers]
            renewed[k] = combine([part / sum(parts) for part in parts], trained)
        models = renewed
        choices = [choose(models, client[split], s.x, s.y) for client in s.clients]
        history.append(
            {
                "personalized": [models[k] for k in choices],
                "choices": choices,
                "models": list(models),
                "clusters": clusters,
            }
        )
    return history
