"""FedProx: a proximal term in the local loss (Li et al., MLSys 2020, Algorithm 2)."""

from tests.references.local_sgd import sgd
from tests.references.network import combine, scale, subtract


def run(initial, clients, rounds, *, x, y, sizes, cohorts, batches, learning_rate, mu):
    """FedAvg whose clients descend f_i(theta) + (mu / 2) ||theta - w||^2, w the received model.

    Args:
      initial, clients, rounds, x, y, sizes, cohorts, batches, learning_rate: as in `fedavg.run`.
      mu: weight of the term.

    Returns:
      After every round, {"global": model}.
    """
    model = initial
    history = []
    for t in range(rounds):
        cohort, received = list(cohorts[t]), model

        def pull(params, received=received):
            return scale(mu, subtract(params, received))

        if cohort:
            trained = [
                sgd(received, batches[t][i], x, y, learning_rate[t], extra_gradient=pull)
                for i in cohort
            ]
            total = sum(sizes[i] for i in cohort)
            model = combine([sizes[i] / total for i in cohort], trained)
        history.append({"global": model})
    return history
