"""FedProto: prototypes instead of models (Tan et al., AAAI 2022, Algorithm 1)."""

import numpy as np

from tests.references.averaging import shares
from tests.references.network import backward, cross_entropy, features, logits, scale, subtract

DISTANCES = ("matched", "batch", "class_means")


def prototype_loss(inner, y, prototypes, exists, over="matched"):
    """Distance of features [B, d] to their classes' prototypes, and its slope [B, d].

    Samples whose class has no prototype don't count.

    Args:
      over: "matched", the mean over the samples that count of |z - P_y|^2 / d; "batch", their
        sum over the number of all samples (the published code); "class_means", the sum over
        classes of |mean of z - P_c|^2 / d (the paper's terms, with the batch's own means).
    """
    width = inner.shape[1]
    slope = np.zeros_like(inner)
    matched = exists[y]
    if not matched.any():
        return 0.0, slope
    if over == "class_means":
        loss = 0.0
        for c in np.unique(y[matched]):
            rows = y == c
            difference = inner[rows].mean(axis=0) - prototypes[c]
            loss += difference @ difference / width
            slope[rows] = 2.0 * difference / (width * rows.sum())
        return loss, slope
    count = matched.sum() if over == "matched" else len(y)
    difference = np.where(matched[:, None], inner - prototypes[y], 0.0)
    return np.sum(difference**2) / (width * count), 2.0 * difference / (width * count)


def loss_gradient(params, x, y, prototypes, exists, weight, over="matched"):
    """Cross-entropy + weight * `prototype_loss`, and its gradient."""
    loss, slope = cross_entropy(logits(params, x), y)
    distance, pull = prototype_loss(features(params, x), y, prototypes, exists, over)
    return loss + weight * distance, backward(params, x, slope, weight * pull)


def class_means(inner, y, classes):
    """(mean feature [C, d], count [C]) of each class; 0 where there's no sample."""
    counts = np.bincount(y, minlength=classes)
    sums = np.zeros((classes, inner.shape[1]))
    np.add.at(sums, y, inner)
    return sums / np.maximum(counts, 1)[:, None], counts


def aggregated(sent, prototypes, exists, weighting="size", drop_missing=False):
    """The server's prototypes after a round: means over this round's holders of each class.

    Args:
      sent: a list of (means [C, d], counts [C]).
      prototypes, exists: the server's before.
      weighting: holders count by their samples of the class (the paper, without its further
        division by the number of holders), or are "uniform" (the published code).
      drop_missing: a class that nobody holds in this round loses its prototype (the published
        code); otherwise it keeps the old one.
    """
    if not sent:
        return prototypes, exists
    prototypes = prototypes.copy()
    exists = np.zeros_like(exists) if drop_missing else exists.copy()
    for c in range(len(exists)):
        holders = [(means[c], counts[c]) for means, counts in sent if counts[c] > 0]
        if holders:
            counted = shares([n for _, n in holders], range(len(holders)), weighting)
            prototypes[c] = counted @ np.array([mean for mean, _ in holders])
            exists[c] = True
    return prototypes, exists


def nearest_prototype(params, x, prototypes, eligible):
    """The eligible class [n] whose prototype is nearest to each row's features."""
    inner = features(params, x)
    distances = ((inner[:, None] - prototypes[None]) ** 2).sum(axis=2)
    return np.argmin(np.where(eligible, distances, np.inf), axis=1)


def with_prototype_head(params, prototypes, eligible, excluded=-1e9):
    """A model whose largest logit is that of the nearest eligible prototype.

    |z - P|^2 = |z|^2 - (2 z P - |P|^2), so the linear layer (2 P^T, -|P|^2) ranks the classes.
    """
    bias = np.where(eligible, -np.sum(prototypes**2, axis=1), excluded)
    kernel = np.where(eligible, 2.0 * prototypes.T, 0.0)
    return {**params, "head": {"kernel": kernel, "bias": bias}}


def run(
    s,
    *,
    weight=1.0,
    over="matched",
    feature_means="after",
    last_epoch_steps=None,
    weighting="size",
    drop_missing=False,
):
    """Models stay with their clients; classes' mean features are averaged, and held against.

    Args:
      weight: lambda.
      over: see `prototype_loss`.
      feature_means: "after" training, of all training samples (the paper);
        "last_epoch", in the steps of the last local epoch, before each step (the published code).
      last_epoch_steps: [i], how many of the last batches of a client belong to its last epoch.
      weighting, drop_missing: see `aggregated`.

    Returns:
      After every round, "personalized": [N], "prototypes": [C, d], "exists": bool [C],
      "sent": {client: (means [C, d], counts [C])}, "classes": bool [N, C], the classes of each
      client's training samples.
    """
    width, count = np.shape(s.initial["head"]["kernel"])
    prototypes, exists = np.zeros((count, width)), np.zeros(count, bool)
    owned = np.array([np.isin(np.arange(count), s.y[c["samples"]]) for c in s.clients])
    models = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        sent = {}
        for i in s.cohorts[t]:
            params, seen, labels = models[i], [np.zeros((0, width))], [np.zeros(0, int)]
            walk = s.batches[t][i]
            for k, batch in enumerate(walk):
                if feature_means == "last_epoch" and k >= len(walk) - last_epoch_steps[i]:
                    seen.append(features(params, s.x[batch]))
                    labels.append(s.y[batch])
                _, gradient = loss_gradient(
                    params, s.x[batch], s.y[batch], prototypes, exists, weight, over
                )
                params = subtract(params, scale(s.learning_rate[t], gradient))
            if feature_means == "after":
                own = s.clients[i]["samples"]
                seen, labels = [features(params, s.x[own])], [s.y[own]]
            sent[i] = class_means(np.concatenate(seen), np.concatenate(labels), count)
            models[i] = params
        prototypes, exists = aggregated(
            list(sent.values()), prototypes, exists, weighting, drop_missing
        )
        history.append(
            {
                "personalized": list(models),
                "prototypes": prototypes,
                "exists": exists,
                "sent": sent,
                "classes": owned,
            }
        )
    return history
