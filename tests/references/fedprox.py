"""FedProx: a proximal term in the local loss (Li et al., MLSys 2020, Algorithm 2)."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import scale, subtract


def run(s, *, proximal_weight, work=None):
    """FedAvg whose clients descend f_i(theta) + (mu / 2) ||theta - w||^2, w the received model.

    Args:
      proximal_weight: weight of the term.
      work: work[t][i], how many of its batches client i takes in round t, the first ones; all by
        default. Its weight is the same.

    Returns:
      After every round, {"global": model}.
    """
    model = s.initial
    history = []
    for t in range(s.rounds):
        cohort, received = list(s.cohorts[t]), model

        def pull(params, received=received):
            return scale(proximal_weight, subtract(params, received))

        if cohort:
            taken = [s.batches[t][i][: None if work is None else work[t][i]] for i in cohort]
            trained = [sgd(received, own, s.x, s.y, s.learning_rate[t], pull) for own in taken]
            model = average(trained, s.sizes, cohort)
        history.append({"global": model})
    return history
