"""FedProx: a proximal term in the local loss (Li et al., MLSys 2020, Algorithm 2)."""

from tests.references.local_sgd import sgd
from tests.references.network import combine, scale, subtract


def run(
    initial,
    clients,
    rounds,
    *,
    x,
    y,
    sizes,
    cohorts,
    batches,
    learning_rate,
    proximal_weight,
    work=None,
):
    """FedAvg whose clients descend f_i(theta) + (mu / 2) ||theta - w||^2, w the received model.

    Args:
      initial, clients, rounds, x, y, sizes, cohorts, batches, learning_rate: as in `fedavg.run`.
      proximal_weight: weight of the term.
      work: work[t][i], how many of its batches client i takes in round t, the first ones; all by
        default. Its weight is the same.

    Returns:
      After every round, {"global": model}.
    """
    model = initial
    history = []
    for t in range(rounds):
        cohort, received = list(cohorts[t]), model

        def pull(params, received=received):
            return scale(proximal_weight, subtract(params, received))

        if cohort:
            taken = [batches[t][i][: None if work is None else work[t][i]] for i in cohort]
            trained = [sgd(received, own, x, y, learning_rate[t], pull) for own in taken]
            total = sum(sizes[i] for i in cohort)
            model = combine([sizes[i] / total for i in cohort], trained)
        history.append({"global": model})
    return history
