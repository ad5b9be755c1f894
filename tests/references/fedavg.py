"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1)."""

from tests.references.local_sgd import sgd
from tests.references.network import combine


def run(s):
    """One global model, averaged over each round's cohort in proportion to the clients' sizes.

    Returns:
      After every round, {"global": model}.
    """
    model = s.initial
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        if cohort:
            trained = [sgd(model, *s.work(t, i)) for i in cohort]
            total = sum(s.sizes[i] for i in cohort)
            model = combine([s.sizes[i] / total for i in cohort], trained)
        history.append({"global": model})
    return history
