"""pFedFDA: heads from Gaussians of features (McLaughlin and Su, NeurIPS 2024)."""

import numpy as np

from tests.references.averaging import average, shares
from tests.references.network import add, cross_entropy, features, linear, loss_and_gradient, scale


def solve(covariance, columns, epsilon):
    """The regularized covariance's inverse times columns [d, k]."""
    width = len(covariance)
    ridge = epsilon * np.trace(covariance) / width
    return np.linalg.solve((1 - epsilon) * covariance + ridge * np.eye(width), columns)


def head(means, covariance, prior, epsilon):
    """The head of linear discriminant analysis; `prior` are probabilities [C]."""
    kernel = solve(covariance, means.T, epsilon)
    bias = [np.log(prior[c]) - 0.5 * means[c] @ kernel[:, c] for c in range(len(means))]
    return {"kernel": kernel, "bias": np.array(bias)}


def prior_of(labels, classes, epsilon):
    """A client's class shares [C], each raised by epsilon."""
    raised = np.bincount(labels, minlength=classes) / len(labels) + epsilon
    return raised / raised.sum()


def estimated(z, labels, means, least, epsilon):
    """(means [C, d], covariance) of features z; the given means for rare classes."""
    own = np.array(means)
    for c in range(len(means)):
        if np.sum(labels == c) >= least:
            own[c] = z[labels == c].mean(axis=0)
    spread = np.zeros((z.shape[1], z.shape[1]))
    for row, label in zip(z, labels, strict=True):
        spread += np.outer(row - own[label], row - own[label])
    return own, spread / max(len(z) - 1, 1) + (1 + epsilon) * np.eye(z.shape[1])


def mixed(known, own, beta):
    """What lies between two Gaussians."""
    return tuple(g + b * (o - g) for g, o, b in zip(known, own, beta, strict=True))


def best_beta(z, labels, known, prior, *, single, least, epsilon):
    """(beta of means, of the covariance) by cross-validation in two folds."""
    fold, seen = np.full(len(z), -1), {}
    for j, label in enumerate(labels):
        if np.sum(labels == label) >= 2:
            fold[j] = seen.get(label, 0) % 2
            seen[label] = seen.get(label, 0) + 1
    if np.sum(fold >= 0) < 4:
        return 0.0, 0.0
    own = [estimated(z[fold == 1 - k], labels[fold == 1 - k], known[0], least, epsilon)
           for k in range(2)]  # fmt: skip

    def loss(beta):
        total = 0.0
        for k in range(2):
            made = head(*mixed(known, own[k], beta), prior, epsilon)
            total += cross_entropy(linear(made, z[fold == k]), labels[fold == k])[0]
        return total

    middle = (0.5, 0.5)
    for step in (0.2, 0.1, 0.05, 0.025):
        tried = []
        offsets = (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5) if step == 0.2 else (-1, 0, 1)
        for a in offsets:
            for b in offsets:
                if single and a != b:
                    continue
                beta = tuple(
                    np.clip(m + step * o, 0, 1) for m, o in zip(middle, (b, a), strict=True)
                )
                tried.append((loss(beta), beta))
        limit = (1 + 1e-5) * min(value for value, _ in tried)
        middle = next(beta for value, beta in tried if value <= limit)
    return middle


def adapted(model, known, x, y, own, prior, options):
    """(a client's Gaussians, its beta), of its samples `own` in the model's body."""
    z, labels = features(model, x[own]), y[own]
    beta = best_beta(z, labels, known, prior, **options)
    mine = estimated(z, labels, known[0], options["least"], options["epsilon"])
    return mixed(known, mine, beta), beta


def run(s, *, means, single=False, min_samples=3, epsilon=0.0001):
    """Rounds of training under heads that Gaussians give.

    Args:
      means: the first means of classes, [C, d].
      single: one beta for means and covariance.
      min_samples, epsilon: hyperparameters.

    Returns:
      After every round, "global": body; "means", "covariance"; "beta": by member;
      "personalized": [N].
    """
    options = {"single": single, "least": min_samples, "epsilon": epsilon}
    classes, width = means.shape
    known, body = (means, np.eye(width)), {k: v for k, v in s.initial.items() if k != "head"}
    priors = [prior_of(s.y[c["samples"]], classes, epsilon) for c in s.clients]
    history = []
    for t in range(s.rounds):
        bodies, sent, betas = [], [], {}
        for i in s.cohorts[t]:
            fixed = head(*known, priors[i], epsilon)
            model = {**body, "head": fixed}
            for batch in s.batches[t][i]:
                _, gradient = loss_and_gradient(model, s.x[batch], s.y[batch])
                model = {**add(model, scale(-s.learning_rate[t], gradient)), "head": fixed}
            own, betas[i] = adapted(
                model, known, s.x, s.y, s.clients[i]["samples"], priors[i], options
            )
            bodies.append({k: v for k, v in model.items() if k != "head"})
            sent.append(own)
        if sent:
            body, p = average(bodies, s.sizes, s.cohorts[t]), shares(s.sizes, s.cohorts[t])
            known = tuple(sum(w * own[k] for w, own in zip(p, sent, strict=True)) for k in range(2))
        personalized = []
        for i, client in enumerate(s.clients):
            own, _ = adapted(
                {**body, "head": None}, known, s.x, s.y, client["samples"], priors[i], options
            )
            personalized.append({**body, "head": head(*own, priors[i], epsilon)})
        history.append(
            {"global": body, "means": known[0], "covariance": known[1], "beta": betas,
             "personalized": personalized}
        )  # fmt: skip
    return history
