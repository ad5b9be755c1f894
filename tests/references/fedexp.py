"""FedExP: an adaptive step of the server (Jhunjhunwala et al., ICLR 2023, Algorithm 1)."""

from tests.references.averaging import shares
from tests.references.network import add, combine, scale, squared_norm, subtract


def run(s, *, epsilon=0.001, weighting="size"):
    """w <- w + eta_g D, eta_g = max(1, sum_i p_i |d_i|^2 / (2 (|D|^2 + epsilon))).

    Args:
      epsilon: as above.
      weighting: the p_i, "size" or "uniform".

    Returns:
      After every round, "global": w, "average": the mean of w before and after the last round with
      clients, "rate": eta_g.
    """
    model = previous = s.initial
    history = []
    for t in range(s.rounds):
        cohort, rate = list(s.cohorts[t]), 1.0
        if cohort:
            parts = shares(s.sizes, cohort, weighting)
            updates = [subtract(s.train(model, t, i), model) for i in cohort]
            mean = combine(parts, updates)
            spread = sum(p * squared_norm(d) for p, d in zip(parts, updates, strict=True))
            rate = max(1.0, spread / (2 * (squared_norm(mean) + epsilon)))
            previous, model = model, add(model, scale(rate, mean))
        average = combine([0.5, 0.5], [previous, model])
        history.append({"global": model, "average": average, "rate": rate})
    return history
