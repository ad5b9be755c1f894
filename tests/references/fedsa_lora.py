"""FedSA-LoRA: A is averaged, B and the head stay with each client (Guo et al., ICLR 2025)."""

from tests.references.adapters import sgd, whole
from tests.references.averaging import shares


def run(s, *, base, factor=1.0):
    """Rounds in which all clients get the mean of the participants' A.

    Args:
      base: the hidden layer's frozen kernel and bias.
      factor: alpha / rank.

    Returns:
      After every round, {"a": A, "personalized": the clients' plain networks}.
    """
    models, history = [s.initial for _ in s.clients], []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        for i in cohort:
            models[i] = sgd(base, models[i], *s.work(t, i), factor)
        if cohort:
            weights = shares(s.sizes, cohort)
            a = sum(p * models[i]["hidden"]["lora_a"] for p, i in zip(weights, cohort, strict=True))
            models = [{**one, "hidden": {**one["hidden"], "lora_a": a}} for one in models]
        history.append({
            "a": models[0]["hidden"]["lora_a"],
            "personalized": [whole(base, one, factor) for one in models],
        })  # fmt: skip
    return history
