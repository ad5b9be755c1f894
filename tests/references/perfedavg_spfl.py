"""What the SPFL paper calls Per-FedAvg: FedAvg with two SGD steps on every minibatch."""

from tests.references import fedavg
from tests.references.local_sgd import repeated


def run(s, *, steps=2):
    """FedAvg whose clients take `steps` successive SGD steps on each minibatch.

    The gradient is computed anew for each of them, so the steps are those of a list in which
    every batch stands `steps` times in a row; 1 is FedAvg.

    Returns:
      After every round, {"global": model}.
    """
    walked = [[repeated(of_client, steps) for of_client in of_round] for of_round in s.batches]
    return fedavg.run(s.but(batches=walked))
