"""FedAvgM: momentum on the server (Hsu, Qi, Brown, 2019)."""

from tests.references.averaging import average
from tests.references.network import add, scale, subtract, zeros_like


def run(s, *, server_momentum=0.9, nesterov=True, server_rate=1.0):
    """v <- beta v + D, w <- w - eta_s v, where D is w less the average of a round's models.

    A round without clients leaves both as they are.

    Args:
      server_momentum: beta.
      nesterov: w <- w - eta_s (D + beta v) instead.
      server_rate: eta_s.

    Returns:
      After every round, "global": w, "velocity": v.
    """
    model, velocity = s.initial, zeros_like(s.initial)
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if cohort:
            trained = [s.train(model, t, i) for i in cohort]
            mean = average(trained, s.sizes, cohort)
            away = subtract(model, mean)
            velocity = add(scale(server_momentum, velocity), away)
            step = add(away, scale(server_momentum, velocity)) if nesterov else velocity
            model = subtract(model, scale(server_rate, step))
        history.append({"global": model, "velocity": velocity})
    return history
