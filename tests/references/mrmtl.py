"""MR-MTL: own models pulled towards their mean (Liu et al., NeurIPS 2022, section 3)."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import scale, subtract


def own_training(own, mean, batches, x, y, learning_rate, proximal_weight):
    """w_i <- w_i - eta (g_b(w_i) + lambda (w_i - w)), where w is the received mean throughout."""

    def towards(model):
        return scale(proximal_weight, subtract(model, mean))

    return sgd(own, batches, x, y, learning_rate, extra_gradient=towards)


def run(s, *, proximal_weight=1.0, weighting="size"):
    """Every member trains its own model near the mean, which is then that of the members.

    Args:
      proximal_weight: lambda.
      weighting: of the mean, "size" or "uniform".

    Returns:
      After every round, "global": w, "personalized": [N], the w_i.
    """
    mean, own = s.initial, [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort, received = list(s.cohorts[t]), mean
        for i in cohort:
            own[i] = own_training(own[i], received, *s.work(t, i), proximal_weight)
        if cohort:
            mean = average([own[i] for i in cohort], s.sizes, cohort, weighting)
        history.append({"global": mean, "personalized": list(own)})
    return history
