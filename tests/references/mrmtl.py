"""MR-MTL: own models pulled towards their mean (Liu et al., NeurIPS 2022, section 3)."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import scale, subtract


def own_training(own, mean, batches, x, y, learning_rate, proximal_weight):
    """w_i <- w_i - eta (g_b(w_i) + lambda (w_i - w)), where w is the received mean throughout."""

    def towards(model):
        return scale(proximal_weight, subtract(model, mean))

    return sgd(own, batches, x, y, learning_rate, extra_gradient=towards)


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
    proximal_weight=1.0,
    weighting="size",
):
    """Every member trains its own model near the mean, which is then that of the members.

    Args:
      initial, clients, rounds, x, y, sizes, cohorts, batches, learning_rate: as in `fedavg.run`.
      proximal_weight: lambda.
      weighting: of the mean, "size" or "uniform".

    Returns:
      After every round, "global": w, "personalized": [N], the w_i.
    """
    mean, own = initial, [initial for _ in clients]
    history = []
    for t in range(rounds):
        cohort, received = list(cohorts[t]), mean
        for i in cohort:
            own[i] = own_training(
                own[i], received, batches[t][i], x, y, learning_rate[t], proximal_weight
            )
        if cohort:
            mean = average([own[i] for i in cohort], sizes, cohort, weighting)
        history.append({"global": mean, "personalized": list(own)})
    return history
