"""FedAMP and HeurFedAMP: attentive message passing (Huang et al., AAAI 2021, Algorithm 1)."""

import numpy as np

from tests.references.network import combine, flat, scale, squared_distance, subtract
from tests.references.similarity import cosine


def largest_alpha(sigma, count):
    """The largest alpha_k with which no client's weight on itself can be negative."""
    return sigma / max(count - 1, 1)


def attention(models, sigma, alpha):
    """xi of eq. (5) for A(d) = 1 - exp(-d / sigma), d a squared distance: [N, N], rows of one.

    xi_ij = alpha A'(||w_i - w_j||^2), A'(d) = exp(-d / sigma) / sigma, for j != i; a client has
    what is left. With alpha above `largest_alpha` that could be negative: it is refused.
    """
    count = len(models)
    if alpha > largest_alpha(sigma, count) * (1 + 1e-12):
        raise ValueError(f"alpha must be at most sigma / (N - 1), {largest_alpha(sigma, count)}.")
    weights = np.zeros((count, count))
    for i in range(count):
        for j in range(count):
            if j != i:
                distance = squared_distance(models[i], models[j])
                weights[i, j] = alpha * np.exp(-distance / sigma) / sigma
        weights[i, i] = 1.0 - weights[i].sum()
    return weights


def cosine_attention(models, sigma, self_weight):
    """HeurFedAMP: (1 - xi_ii) softmax over j != i of sigma cos(w_i, w_j); xi_ii is given."""
    count = len(models)
    weights = np.zeros((count, count))
    for i in range(count):
        others = [j for j in range(count) if j != i]
        if not others:
            weights[i, i] = 1.0
            continue
        scores = np.array([sigma * cosine(flat(models[i]), flat(models[j])) for j in others])
        powers = np.exp(scores - scores.max())
        weights[i, others] = (1.0 - self_weight) * powers / powers.sum()
        weights[i, i] = self_weight
    return weights


def newcomer(model, models, *, sigma=1.0, alpha=None, heuristic=False, self_weight=None):
    """The cloud model of a client that took no part: its own model mixed once with all others'.

    Args:
      model: what it trained by itself.
      models: those of the N clients that took part.
      sigma, alpha, heuristic, self_weight: as in `run`; alpha is at most the largest for N + 1.
    """
    everybody = [model, *models]
    if heuristic:
        self_weight = 1.0 / len(everybody) if self_weight is None else self_weight
        return combine(cosine_attention(everybody, sigma, self_weight)[0], everybody)
    largest = largest_alpha(sigma, len(everybody))
    alpha = largest if alpha is None else min(alpha, largest)
    return combine(attention(everybody, sigma, alpha)[0], everybody)


def run(
    s, *, sigma=1.0, alpha=None, proximal_weight=0.1, start=None, heuristic=False, self_weight=None
):
    """Each client descends f_i(w) + proximal_weight / 2 ||w - u_i||^2, u_i = sum_j xi_ij w_j.

    The u_i of a round come from the models before it, those of absent clients included: the
    server keeps everybody's last one.

    Args:
      sigma: width of the attention; of HeurFedAMP, the factor of the cosines.
      alpha: alpha_k, the server's step in FedAMP's weights. None is the largest that FedAMP allows,
        sigma / (N - 1).
      proximal_weight: lambda / alpha_k of the paper's local problem, as one number.
      start: where the local steps begin, "own", w_i, or "cloud", u_i. None is "own" for FedAMP
        and "cloud" for HeurFedAMP.
      heuristic: HeurFedAMP's weights in the place of FedAMP's.
      self_weight: xi_ii of HeurFedAMP; None is 1 / N.

    Returns:
      After every round, "personalized": [N models], "cloud": {client: u_i} of the cohort and
      "weights": xi [N, N], the rows of absent clients those of the identity.
    """
    count = len(s.clients)
    start = ("cloud" if heuristic else "own") if start is None else start
    if alpha is None:
        alpha = largest_alpha(sigma, count)
    self_weight = 1.0 / count if self_weight is None else self_weight
    models = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        if heuristic:
            weights = cosine_attention(models, sigma, self_weight)
        else:
            weights = attention(models, sigma, alpha)
        cloud, trained = {}, {}
        for i in s.cohorts[t]:
            cloud[i] = combine(weights[i], models)

            def towards(params, target=cloud[i]):
                return scale(proximal_weight, subtract(params, target))

            begin = models[i] if start == "own" else cloud[i]
            trained[i] = s.train(begin, t, i, extra_gradient=towards)
        for i in range(count):
            if i in trained:
                models[i] = trained[i]
            else:
                weights[i] = np.eye(count)[i]
        history.append({"personalized": list(models), "cloud": cloud, "weights": weights})
    return history
