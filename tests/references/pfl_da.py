"""PFL-DA (Shi and Al Kontar, Technometrics 2023), as PFLlib's clientda.py arranges it."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import scale, subtract, zeros_like


def own_head(body, head, shared, batches, x, y, rate, proximal_weight):
    """Trains `head` on a frozen body, pulled to the shared head."""

    def towards(model):
        away = scale(proximal_weight, subtract({"head": model["head"]}, {"head": shared}))
        return {**zeros_like(model), **away}

    return sgd({**body, "head": head}, batches, x, y, rate, towards, ("head",))["head"]


def run(s, *, head_batches, proximal_weight=1.0):
    """Private bodies, own heads, and a shared head that is averaged.

    Args:
      head_batches: like `batches`, for own heads.
      proximal_weight: lambda.

    Returns:
      After every round, "head": the shared one, "personalized": [N], bodies with own heads.
    """
    shared, own, history = s.initial["head"], [s.initial for _ in s.clients], []
    for t in range(s.rounds):
        heads, rate = [], s.learning_rate[t]
        for i in s.cohorts[t]:
            body = {name: layer for name, layer in own[i].items() if name != "head"}
            head = own_head(
                body, own[i]["head"], shared, head_batches[t][i], s.x, s.y, rate, proximal_weight
            )
            trained = sgd({**body, "head": shared}, s.batches[t][i], s.x, s.y, rate)
            heads.append({"head": trained["head"]})
            own[i] = {**trained, "head": head}
        if heads:
            shared = average(heads, s.sizes, list(s.cohorts[t]))["head"]
        history.append({"head": shared, "personalized": list(own)})
    return history
