"""cwFedAVG: class-wise federated averaging with the weight distribution regularizer (WDR)."""

import numpy as np

from tests.references.network import combine, zeros_like

SHARES = ("labels", "norms")


def label_shares(labels, classes):
    """p_ij = n_ij / n_i of one client; all zero without samples."""
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    return counts / max(counts.sum(), 1.0)


def norm_shares(params):
    """Eq. (9): ptilde_j = ||W_j|| / sum_k ||W_k||, W_j column j of the head's kernel, no bias."""
    norms = np.sqrt((params["head"]["kernel"] ** 2).sum(axis=0))
    return norms / norms.sum() if norms.sum() > 0.0 else np.full(len(norms), 1.0 / len(norms))


def regularizer(params, target, weight, tiny=1e-12):
    """0.5 weight sqrt(sum_j (ptilde_j - target_j)^2 + tiny): the distance isn't squared."""
    difference = norm_shares(params) - target
    return 0.5 * weight * np.sqrt((difference**2).sum() + tiny)


def regularizer_gradient(params, target, weight, tiny=1e-12):
    """The gradient of `regularizer`: zero except in the head's kernel.

    With s the square root, n_j = ||W_j|| and T = sum_k n_k:
    g_j = dR/dptilde_j = 0.5 weight (ptilde_j - target_j) / s; from ptilde_j = n_j / T follows
    dR/dn_k = (g_k - sum_j g_j ptilde_j) / T, and dn_k/dW_k = W_k / n_k, taken to be 0 at W_k = 0.
    """
    kernel = params["head"]["kernel"]
    norms = np.sqrt((kernel**2).sum(axis=0))
    gradient = zeros_like(params)
    if norms.sum() == 0.0:
        return gradient
    shares = norm_shares(params)
    difference = shares - target
    by_share = 0.5 * weight * difference / np.sqrt((difference**2).sum() + tiny)
    by_norm = (by_share - by_share @ shares) / norms.sum()
    directions = np.zeros_like(kernel)
    for j, norm in enumerate(norms):
        if norm > 0.0:
            directions[:, j] = kernel[:, j] / norm
    gradient["head"]["kernel"] = directions * by_norm
    return gradient


def class_weights(sizes, shares):
    """Eqs. (3)-(5): Q[k, j] = p_k P[k, j] / sum_l p_l P[l, j] over the uploads k.

    A class that no upload has a share of gets a column of zeros: it has no model.

    Args:
      sizes: n_k of the M uploads.
      shares: P [M, C].
    """
    total = float(sum(sizes))
    mass = np.array([n / total if total > 0.0 else 0.0 for n in sizes])[:, None] * shares
    columns = mass.sum(axis=0)
    weights = np.zeros_like(mass)
    for j, column in enumerate(columns):
        if column > 0.0:
            weights[:, j] = mass[:, j] / column
    return weights


def available_shares(shares, weights):
    """One client's row of P over the classes that have a model, summing to 1 (or all zero)."""
    kept = np.where(weights.sum(axis=0) > 0.0, shares, 0.0)
    return kept / kept.sum() if kept.sum() > 0.0 else kept


def mixing_matrix(receivers, weights):
    """The fused form, W = P Q^T: W[i, k] = sum_j P[i, j] Q[k, j]."""
    return receivers @ weights.T


def run(s, *, shares="norms", wdr_weight=10.0, fused=False):
    """One model per class, averaged over the cohort; every client mixes them by its class shares.

    A round: the cohort trains; the class models are averaged from what it trained; every client,
    absent ones as well, is started anew from the class models, with the shares of the model that
    it uploaded last (before its first upload, of the initial model). Where a class
    has no model this round, because nobody in the cohort has a share of it, a client's other
    shares are scaled to sum to 1; a client that shares no class with the cohort keeps its model.

    Args:
      shares: the source of P, one of `SHARES`: "labels" (w/ Dist.), the labels' frequencies;
        "norms" (w/o and w/ WDR), the norms of the head's columns.
      wdr_weight: lambda; 0 leaves the regularizer out.
      fused: whether the clients' models are mixed straight from the uploads by W, not through
        the class models.

    Returns:
      After every round, "personalized": [N models], each client's model after the new start;
      "trained": {client: model} of the cohort; "class_models": [C], None where a class has no
      model; "class_weights": Q [N, C], zero for absent clients; "shares": P [N, C] as applied;
      "weights": W [N, N], the identity's row for a client that keeps its model.
    """
    count, classes = len(s.clients), len(s.initial["head"]["bias"])
    labels = [label_shares(s.y[client["samples"]], classes) for client in s.clients]
    personal = [s.initial for _ in s.clients]
    uploaded = [s.initial for _ in s.clients]  # last trained, never mixed since
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        trained = {}
        for i in cohort:

            def extra(params, target=labels[i]):
                return regularizer_gradient(params, target, wdr_weight)

            trained[i] = s.train(personal[i], t, i, extra_gradient=extra if wdr_weight else None)
            uploaded[i] = trained[i]

        held = [trained.get(i, personal[i]) for i in range(count)]
        all_shares = np.array(
            labels if shares == "labels" else [norm_shares(model) for model in uploaded]
        )
        uploads = class_weights([s.sizes[k] for k in cohort], all_shares[cohort])  # Q
        applied = np.array([available_shares(row, uploads) for row in all_shares])  # P
        keeps = applied.sum(axis=1) == 0.0

        models = [trained[k] for k in cohort]
        class_models = [
            combine(uploads[:, j], models) if uploads[:, j].sum() > 0.0 else None
            for j in range(classes)
        ]
        weights = np.zeros((count, count))
        weights[:, cohort] = mixing_matrix(applied, uploads)
        weights[keeps] = np.eye(count)[keeps]

        existing = [j for j in range(classes) if class_models[j] is not None]
        for i in range(count):
            if keeps[i]:
                personal[i] = held[i]
            elif fused:
                personal[i] = combine(weights[i, cohort], models)
            else:  # eq. (7)
                personal[i] = combine(applied[i, existing], [class_models[j] for j in existing])

        by_client = np.zeros((count, classes))
        by_client[cohort] = uploads
        history.append(
            {
                "personalized": list(personal),
                "trained": trained,
                "class_models": class_models,
                "class_weights": by_client,
                "shares": applied,
                "weights": weights,
            }
        )
    return history
