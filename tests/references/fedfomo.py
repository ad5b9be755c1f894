"""FedFomo: first-order model optimization (Zhang et al., ICLR 2021)."""

import numpy as np

from tests.references.network import add, combine, flat, loss_and_gradient, subtract

NORMS = {"l2": 2, "l1": 1}


def validation_loss(model, client, x, y):
    """L_i, the mean loss on a client's validation samples; 0 for a client without any."""
    at = np.asarray(client.get("validation", []), int)
    return loss_and_gradient(model, x[at], y[at])[0] if len(at) else 0.0


def pick(affinity, candidates, count, explores, priority, ties):
    """The models that one client downloads beside its own: epsilon-greedy, without replacement.

    Args:
      affinity: the client's row of affinities [N].
      candidates: whose models there are.
      count: how many; all candidates where there are no more.
      explores: bool [count], whether each pick is a random one.
      priority: [N] random numbers: a random pick is the candidate left with the smallest.
      ties: [N] random numbers: of equal affinities the smallest wins.
    """
    left, chosen = list(candidates), []
    for explore in explores[:count]:
        if not left:
            break
        if explore:
            best = min(left, key=lambda j: priority[j])
        else:
            best = max(left, key=lambda j: (affinity[j], -ties[j]))
        left.remove(best)
        chosen.append(best)
    return chosen


def first_order_weights(start_loss, losses, distances, tiny=0.0):
    """(L(s) - L(Theta_j)) / d_j with its sign, 0 where d_j is at most `tiny`."""
    gains = [start_loss - loss for loss in losses]
    return np.array(
        [gain / d if d > tiny else 0.0 for gain, d in zip(gains, distances, strict=True)],
        np.float64,
    )


def positive_part(weights):
    """Negative weights dropped, the rest over their sum; all zero where none is positive."""
    kept = np.maximum(weights, 0.0)
    return kept / kept.sum() if kept.sum() > 0 else kept


def raised(affinity, who, weights, rule="normalized"):
    """The affinities [N] of one client after it has weighed the models of `who`.

    "normalized" adds w_j / |sum_k w_k|, signs kept; a sum below 1e-9 is raised by 1e-9. "raw"
    adds w_j.
    """
    affinity, total = np.array(affinity), 1.0
    if rule == "normalized":
        total = abs(weights.sum())
        total = total + 1e-9 if total < 1e-9 else total
    for j, weight in zip(who, weights, strict=True):
        affinity[j] += weight / total
    return affinity


def mix(start, models, client, x, y, norm="l2", fallback="trained"):
    """One client's mixture of its own last model, models[0], and those that it downloaded.

    Args:
      start: s_i, to which losses and distances are compared.
      models: Theta_i, then Theta_j of the others.
      client: with "validation".
      norm, fallback: as in `run`.

    Returns:
      The mixture, the weights of `models` in it (all zero where it is s_i), and the weights w
      with their signs. A model within 1e-6 ||s_i|| of s_i weighs 0: it is s_i but for rounding.

    A newcomer does so once: s_i is where it begins, Theta_i what it trained by itself.
    """
    moves = [subtract(model, start) for model in models]
    signed = first_order_weights(
        validation_loss(start, client, x, y),
        [validation_loss(model, client, x, y) for model in models],
        [np.linalg.norm(flat(move), NORMS[norm]) for move in moves],
        1e-6 * np.linalg.norm(flat(start), NORMS[norm]),
    )
    share = positive_part(signed)
    if share.any():
        return add(start, combine(share, moves)), share, signed
    share[0] = float(fallback == "trained")
    return (models[0] if fallback == "trained" else start), share, signed


def run(
    s,
    *,
    downloads=4,
    draws=None,
    norm="l2",
    affinity="normalized",
    fallback="trained",
    self_affinity=0.1,
):
    """Clients mix the models that help on their validation samples, then train.

    s_i is the model from which client i last trained, Theta_i what it trained. At the start of a
    round theta_i = s_i + sum_j w_ij (Theta_j - s_i) over its own Theta_i and those that it
    downloads from the last uploaders; then s_i = theta_i and Theta_i is trained from it.

    Args:
      downloads: M, how many models of others a client downloads.
      draws: draws[t][i] is (explores, priority, ties) of `pick`; None never explores and gives
        ties to the lower client.
      norm: of the distances, "l2", or "l1" as in the published code.
      affinity: what the affinities are raised by, "normalized" or "raw".
      fallback: without a positive weight the client trains on from "trained", Theta_i, or falls
        back to "start", s_i, as the published code does.
      self_affinity: the diagonal of the affinities at first; the rest is 0.

    Returns:
      After every round, "personalized": [s_i], mixed and not trained, "trained": [Theta_i],
      "weights": [N, N] over Theta, normalized, rows of zeros where s_i was kept and those of the
      identity for absent clients and for Theta_i kept, "signed": {client: {j: w_ij}},
      "downloaded": {client: [others]} and "affinity": [N, N].
    """
    count = len(s.clients)
    starts, trained = [s.initial for _ in s.clients], [s.initial for _ in s.clients]
    affinities = self_affinity * np.eye(count)
    uploaders = []
    history = []
    for t in range(s.rounds):
        weights, signed, downloaded, mixed = np.eye(count), {}, {}, {}
        for i in s.cohorts[t]:
            others = [j for j in uploaders if j != i]
            chance = draws[t][i] if draws else ([False] * downloads, range(count), range(count))
            downloaded[i] = pick(affinities[i], others, downloads, *chance)
            who = [i, *downloaded[i]]
            mixed[i], share, row = mix(
                starts[i], [trained[j] for j in who], s.clients[i], s.x, s.y, norm, fallback
            )
            affinities[i] = raised(affinities[i], who, row, affinity)
            signed[i] = dict(zip(who, row, strict=True))
            weights[i] = 0.0
            weights[i, who] = share
        for i in s.cohorts[t]:
            starts[i] = mixed[i]
            trained[i] = s.train(mixed[i], t, i)
        uploaders = list(s.cohorts[t]) or uploaders
        history.append(
            {
                "personalized": list(starts),
                "trained": list(trained),
                "weights": weights,
                "signed": signed,
                "downloaded": downloaded,
                "affinity": affinities.copy(),
            }
        )
    return history
