"""PFL-DA (Shi and Al Kontar, Technometrics 2023), as the authors' studies train."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import combine


def local_round(model, head, generic, batches, x, y, rate, generic_weight, mixed="first_step"):
    """(the body with the client's generic head, the own head) after the batches."""
    model = {**model, "head": generic}
    for k, batch in enumerate(batches):
        model = sgd(model, [batch], x, y, rate)
        own = sgd({**model, "head": head}, [batch], x, y, rate, layers=("head",))["head"]
        weight = generic_weight if mixed == "every_step" or k == 0 else 0.0
        pair = [{"head": generic}, {"head": own}]
        head = combine([weight, 1.0 - weight], pair)["head"]
    return model, head


def run(s, *, generic_weight=0.9, mixed="every_step", weighting="uniform"):
    """Private bodies, own heads, and a generic head that is averaged.

    Args:
      generic_weight: of the generic head, as it was received, in the mixture with the own one.
      mixed: after the "first_step" of a round, or after "every_step".

    Returns:
      After every round, "head": the generic one, "personalized": [N], bodies with own heads.
    """
    generic, own, history = s.initial["head"], [s.initial for _ in s.clients], []
    for t in range(s.rounds):
        sent = []
        for i in s.cohorts[t]:
            given = s.batches[t][i], s.x, s.y, s.learning_rate[t], generic_weight, mixed
            model, head = local_round(own[i], own[i]["head"], generic, *given)
            sent.append({"head": model["head"]})
            own[i] = {**model, "head": head}
        if sent:
            generic = average(sent, s.sizes, list(s.cohorts[t]), weighting)["head"]
        history.append({"head": generic, "personalized": list(own)})
    return history
