"""LGA and PLGA: predicting the models of late clients (ICLR 2022 submission, Algorithm 2).

A client that trained from w0 and arrives late sends what its model would be by now. With v its
trained model, D = v - w0, w1 the server's model one round after w0, and w the present one:

    S = cos(w1 - w0, D), Stilde = e^S / (e + e^S)                          (8), (9), (13)
    predicted = w  + Stilde * D * D * (w - w1) + D                         (11)
    predicted = w0 + Stilde * D * D * (w - w1) + D                         (10)
    personal  = w0 + (1 - Stilde) (predicted - w0) + Stilde (w - w0)       (12), (14)

In the published code it is the client that predicts, in place: from then on, until it trains
again, its own model is the prediction, which LGA scores. PLGA's code has a last act: in the last
round whoever still waits predicts and sends at once.
"""

import numpy as np

from tests.references.arrivals import Clients, averaged
from tests.references.network import mapped, subtract
from tests.references.similarity import cosine, vector

STAGES = ("tensor", "block", "stage", "model")


def stage_leaves(model, stage):
    """The groups of leaves, pairs (layer, name), over which a similarity is taken."""
    tensors = [(layer, name) for layer in model for name in model[layer]]
    if stage == "tensor":
        return [[leaf] for leaf in tensors]
    if stage == "block":
        return [[leaf for leaf in tensors if leaf[0] == layer] for layer in model]
    if stage == "stage":  # body and head
        return [[leaf for leaf in tensors if (leaf[0] == "head") == last] for last in (False, True)]
    if stage == "model":
        return [tensors]
    raise ValueError(f"Unknown stage {stage!r}. Valid: {', '.join(STAGES)}.")


def similarity(server_move, client_move, stage="tensor"):
    """S of eq. (8) by stage, as a model whose leaves are the number of their stage."""
    result = {layer: dict(leaves) for layer, leaves in client_move.items()}
    for leaves in stage_leaves(client_move, stage):
        value = cosine(vector(server_move, leaves), vector(client_move, leaves))
        for layer, name in leaves:
            result[layer][name] = np.float64(value)
    return result


def normalized(values):
    """Eqs. (9) and (13): Stilde = e^S / (e + e^S)."""
    return mapped(lambda s: np.exp(s) / (np.e + np.exp(s)), values)


def predicted(trained, start, after, server, *, stage="tensor", equation=11, raw_cosine=False):
    """Eq. (11) or (10).

    Args:
      trained: v.
      start: w0, from which it was trained.
      after: w1, the server's model one round later.
      server: w.
      stage: one of `STAGES`.
      equation: 11 or 10.
      raw_cosine: S instead of Stilde, as in the published code.
    """
    move = subtract(trained, start)
    factor = similarity(subtract(after, start), move, stage)
    if not raw_cosine:
        factor = normalized(factor)
    base = server if equation == 11 else start
    drift = subtract(server, after)
    return mapped(lambda f, s, d, g: f + s * d * d * g + d, base, factor, move, drift)


def personal(model, start, server, weights):
    """Eqs. (12) and (14): w0 + (1 - Stilde) (model - w0) + Stilde (w - w0)."""
    return mapped(
        lambda m, w0, w, s: w0 + (1.0 - s) * (m - w0) + s * (w - w0), model, start, server, weights
    )


def run(
    s,
    *,
    stage="tensor",
    equation=11,
    raw_cosine=False,
    weighting="size",
    start="server",
    flush=False,
):
    """A global model of fresh and predicted uploads, and personal models.

    Args:
      stage, equation, raw_cosine: see `predicted`.
      weighting: of uploads by "size", or "uniform".
      start: whether clients train from the "server" model or from their "personal" one, which is
        then their w0.
      flush: whether waiting clients send in the last round.

    Returns:
      After every round, "global": w; "trained": [N], the clients' own models, which LGA scores: v,
      or the prediction from the round it is sent in; "personal": [N], which PLGA scores; "start"
      and "after": w0 and w1 [N]; "predicted": {client: model}; "arrived":
      clients whose uploads arrived.
    """
    count = len(s.clients)
    server = s.initial
    state = Clients(s.initial, count)
    after = [s.initial] * count
    personalized = [s.initial] * count
    on_the_way = set()
    history = []
    for t in range(s.rounds):
        for k in s.starts[t]:
            begin = {"server": server, "personal": personalized[k]}[start]
            state.train([k], t, begin, s.batches, s.x, s.y, s.learning_rate[t])
        on_the_way |= set(s.starts[t])
        here = set(s.arrivals[t])
        if flush and t == s.rounds - 1:
            here |= {k for k in on_the_way if state.staleness(k, t) > 0}
        fresh = [k for k in sorted(here) if state.staleness(k, t) == 0]
        stale = [k for k in sorted(here) if state.staleness(k, t) > 0]
        for k in on_the_way:
            if state.staleness(k, t) == 1:
                after[k] = server
        on_the_way -= here

        guesses = {}
        for k in stale:
            v, w0, w1 = state.trained[k], state.start[k], after[k]
            guesses[k] = predicted(
                v, w0, w1, server, stage=stage, equation=equation, raw_cosine=raw_cosine
            )
            weights = normalized(similarity(subtract(w1, w0), subtract(v, w0), stage))
            personalized[k] = personal(guesses[k], w0, server, weights)

        for k in stale:
            state.trained[k] = guesses[k]
        sizes = s.sizes if weighting == "size" else np.ones(count)
        server = averaged({k: state.trained[k] for k in sorted(here)}, sizes, server)
        for k in fresh:
            v, w0 = state.trained[k], state.start[k]
            weights = normalized(similarity(subtract(server, w0), subtract(v, w0), stage))
            personalized[k] = personal(v, w0, server, weights)
        history.append(
            {
                "global": server,
                "trained": list(state.trained),
                "personal": list(personalized),
                "start": list(state.start),
                "after": list(after),
                "predicted": guesses,
                "arrived": sorted(here),
            }
        )
    return history
