"""FFA-LoRA: the factor A is fixed, and B is averaged (Sun et al., ICLR 2024)."""

from tests.references.adapters import sgd, whole
from tests.references.averaging import average


def run(
    initial, clients, rounds, *, x, y, sizes, cohorts, batches, learning_rate, base, factor=1.0
):
    """FedAvg of B and the head.

    Args:
      initial: adapters and head before the first round.
      clients, rounds, x, y, sizes, cohorts, batches, learning_rate: as in `fedavg.run`.
      base: the hidden layer's frozen kernel and bias.
      factor: alpha / rank.

    Returns:
      After every round, {"global": adapters and head, "whole": the plain network}.
    """
    model, history = initial, []
    for t in range(rounds):
        trained = [
            sgd(base, model, batches[t][i], x, y, learning_rate[t], factor, trained=("lora_b",))
            for i in cohorts[t]
        ]
        model = average(trained, sizes, cohorts[t]) if trained else model
        history.append({"global": model, "whole": whole(base, model, factor)})
    return history
