"""FFA-LoRA: the factor A is fixed, and B is averaged (Sun et al., ICLR 2024)."""

from tests.references.adapters import sgd, whole
from tests.references.averaging import average


def run(s, *, base, factor=1.0):
    """FedAvg of B and the head.

    Args:
      base: the hidden layer's frozen kernel and bias.
      factor: alpha / rank.

    Returns:
      After every round, {"global": adapters and head, "whole": the plain network}.
    """
    model, history = s.initial, []
    for t in range(s.rounds):
        trained = [
            sgd(base, model, *s.work(t, i), factor, trained=("lora_b",)) for i in s.cohorts[t]
        ]
        model = average(trained, s.sizes, s.cohorts[t]) if trained else model
        history.append({"global": model, "whole": whole(base, model, factor)})
    return history
