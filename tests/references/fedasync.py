"""FedAsync: late models count less (Xie, Koyejo, Gupta, 2019), and its form in the PLGA code."""

import numpy as np

from tests.references.arrivals import Clients, averaged
from tests.references.network import combine

DECAYS = ("constant", "poly", "hinge")


def decay(kind, staleness, a=0.5, b=4.0):
    """s(x) for a staleness of x rounds: 1; (x + 1)^-a; or 1 up to x = b, 1 / (a (x - b) + 1) after.

    Args:
      kind: one of `DECAYS`.
      staleness: x.
      a, b: of "poly" (a) and of "hinge" (both).
    """
    if kind == "constant":
        return 1.0
    if kind == "poly":
        return (staleness + 1.0) ** -a
    if kind == "hinge":
        return 1.0 if staleness <= b else 1.0 / (a * (staleness - b) + 1.0)
    raise ValueError(f"Unknown decay {kind!r}. Valid: {', '.join(DECAYS)}.")


def run(s, *, mode="plga", alpha=0.8, kind="poly", a=0.5, b=4.0, rho=0.0, ids=None):
    """Arriving models are mixed into the server's, the less so the staler they are.

    Args:
      mode: "plga", the PLGA code's: a late client's v becomes sa v + (1 - sa) w with
        sa = alpha s(staleness), on its side, before it is sent; then the round's arrivals are
        averaged by their clients' sizes. A punctual one sends v as it is.
        "original": one arrival after the other, in the order of permanent ids,
        w <- (1 - sa) w + sa v.
      alpha: the weight in front of s.
      kind, a, b: s, see `decay`.
      rho: the local loss gets rho/2 ||v - w||^2, w the model it began with.
      ids: permanent ids of the clients; None is 0, ..., N - 1.

    Returns:
      After every round, "global": w; "personalized": [N], every client's own model: what it
      trained last, or in "plga" what became of that when it was sent late.
    """
    server = s.initial
    order = range(len(s.clients)) if ids is None else np.asarray(ids)
    state = Clients(s.initial, len(s.clients))
    history = []
    for t in range(s.rounds):
        state.train(
            s.starts[t], t, server, s.batches, s.x, s.y, s.learning_rate[t], proximal_weight=rho
        )
        lateness = {k: state.staleness(k, t) for k in s.arrivals[t]}
        shares = {k: alpha * decay(kind, late, a, b) for k, late in lateness.items()}
        if mode == "plga":
            for k in (k for k, late in lateness.items() if late > 0):
                pair = [state.trained[k], server]
                state.trained[k] = combine([shares[k], 1.0 - shares[k]], pair)
            server = averaged({k: state.trained[k] for k in s.arrivals[t]}, s.sizes, server)
        else:
            for k in sorted(shares, key=order.__getitem__):
                server = combine([1.0 - shares[k], shares[k]], [server, state.trained[k]])
        history.append({"global": server, "personalized": list(state.trained)})
    return history
