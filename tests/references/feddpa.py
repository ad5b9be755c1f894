"""FedDPA-T: a global and an own set of adapters (Yang et al., NeurIPS 2024)."""

import numpy as np

from tests.references.adapters import sgd
from tests.references.averaging import shares
from tests.references.network import combine, loss_and_gradient


def run(s, *, base, own, local_batches, factor=1.0, local_weight=0.5, weighting="uniform"):
    """Own sets are trained beside the global one, which is trained alone and averaged.

    Args:
      base: the hidden layer's frozen kernel and bias.
      own: the clients' first own set {"lora_a", "lora_b"}.
      local_batches: batches of the own sets' training.
      factor: alpha / rank.
      local_weight: a, of the own set while it is trained.
      weighting: "uniform" or "size".

    Returns:
      After every round, {"global": adapters and head, "own": own sets of the clients}.
    """
    model, owned, history = s.initial, [own for _ in s.clients], []
    for t in range(s.rounds):
        cohort, rate, trained = list(s.cohorts[t]), s.learning_rate[t], []
        for i in cohort:
            mine = owned[i]
            for batch in local_batches[t][i]:
                plain = mixed(base, model, mine, factor, local_weight)
                _, gradient = loss_and_gradient(plain, s.x[batch], s.y[batch])
                slope = factor * local_weight * gradient["hidden"]["kernel"]
                mine = {
                    "lora_a": mine["lora_a"] - rate * slope @ mine["lora_b"].T,
                    "lora_b": mine["lora_b"] - rate * mine["lora_a"].T @ slope,
                }
            owned[i] = mine
            trained.append(sgd(base, model, s.batches[t][i], s.x, s.y, rate, factor))
        if cohort:
            even = [1 / len(cohort)] * len(cohort)
            model = combine(even if weighting == "uniform" else shares(s.sizes, cohort), trained)
        history.append({"global": model, "own": list(owned)})
    return history


def mixed(base, model, own, factor, weight):
    """The plain network: W + s ((1 - a) A B + a A_i B_i)."""
    shared = model["hidden"]
    terms = (1 - weight) * shared["lora_a"] @ shared["lora_b"]
    terms = terms + weight * own["lora_a"] @ own["lora_b"]
    hidden = {"kernel": base["kernel"] + factor * terms, "bias": base["bias"]}
    return {"hidden": hidden, "head": model["head"]}


def predicted(base, model, own, factor, most, anchors, x):
    """Logits of samples, each with its own weight by similarity to the anchors' features."""

    def features(network, inputs):
        return np.tanh(inputs @ network["hidden"]["kernel"] + network["hidden"]["bias"])

    second = mixed(base, model, own, factor, 1.0)
    known, outputs = features(second, anchors), []
    for sample in x:
        z = features(second, sample[None])[0]
        cosines = [z @ one / np.linalg.norm(z) / np.linalg.norm(one) for one in known]
        network = mixed(base, model, own, factor, most * sum(cosines) / len(cosines))
        outputs.append(features(network, sample[None])[0] @ network["head"]["kernel"])
        outputs[-1] = outputs[-1] + network["head"]["bias"]
    return np.array(outputs)
