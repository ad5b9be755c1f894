"""FedAdagrad, FedAdam, FedYogi (Reddi et al., ICLR 2021, Algorithm 2)."""

import numpy as np

from tests.references.averaging import average
from tests.references.network import add, mapped, scale, subtract, zeros_like

RULES = ("adagrad", "adam", "yogi")


def second_moment(rule, second, change, b2):
    """v after a round whose averaged change is D."""
    if rule == "adagrad":
        return mapped(lambda v, d: v + d**2, second, change)
    if rule == "adam":
        return mapped(lambda v, d: b2 * v + (1.0 - b2) * d**2, second, change)
    if rule == "yogi":
        return mapped(lambda v, d: v - (1.0 - b2) * d**2 * np.sign(v - d**2), second, change)
    raise ValueError(f"Unknown rule {rule!r}. Valid: {', '.join(RULES)}.")


def run(
    s,
    *,
    rule,
    server_rate,
    b1=None,
    b2=0.99,
    tau=0.001,
    v0=None,
    bias_correction=False,
    weighting="size",
):
    """FedAvg whose server takes an adaptive step along the averaged change of its model.

    With D = sum_i p_i (w_i - w): m <- b1 m + (1 - b1) D, v by the rule, and
    w <- w + eta m / (sqrt(v) + tau).
    A round without clients leaves w, m and v unchanged and does not count.

    Args:
      rule: one of `RULES`.
      server_rate: eta, which the paper tunes for every task.
      b1: None takes 0.9, or 0 for "adagrad".
      b2, tau: as above; tau stands outside the root.
      v0: the first v; None takes tau^2.
      bias_correction: eta sqrt(1 - b2^t) / (1 - b1^t) in place of eta, t = 1, 2 ... ; not for
        "adagrad".
      weighting: p_i by "size" or "uniform".

    Returns:
      After every round, "global": w, "first": m, "second": v.
    """
    if bias_correction and rule == "adagrad":
        raise ValueError("Adagrad's sum of squares has no bias to correct.")
    b1 = (0.0 if rule == "adagrad" else 0.9) if b1 is None else b1
    v0 = tau**2 if v0 is None else v0
    model, first = s.initial, zeros_like(s.initial)
    second = mapped(lambda leaf: np.full(leaf.shape, float(v0)), s.initial)
    history, count = [], 0
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if cohort:
            count += 1
            trained = [s.train(model, t, i) for i in cohort]
            change = subtract(average(trained, s.sizes, cohort, weighting), model)
            first = add(scale(b1, first), scale(1.0 - b1, change))
            second = second_moment(rule, second, change, b2)
            rate = server_rate
            if bias_correction:
                rate = rate * np.sqrt(1.0 - b2**count) / (1.0 - b1**count)
            step = mapped(lambda m, v: m / (np.sqrt(v) + tau), first, second)
            model = add(model, scale(rate, step))
        history.append({"global": model, "first": first, "second": second})
    return history
