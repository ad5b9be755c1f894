"""Ditto: personal models pulled towards the global one (Li et al., ICML 2021, Algorithm 1)."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import scale, subtract


def personal_training(own, received, batches, x, y, learning_rate, proximal_weight):
    """v <- v - eta (g_b(v) + lambda (v - w)), where w is the received model throughout."""

    def towards(model):
        return scale(proximal_weight, subtract(model, received))

    return sgd(own, batches, x, y, learning_rate, extra_gradient=towards)


def run(s, *, personal_batches, personal_rate=None, proximal_weight=1.0, weighting="size"):
    """FedAvg, and beside it a personal model of every client, trained when it takes part.

    The authors' code is `personal_batches=batches` and `weighting="uniform"`: one minibatch serves
    both models at every step. Which of the two steps comes first does not matter.

    Args:
      personal_batches: like `batches`, for the personal models.
      personal_rate: one rate per round; None takes the round's learning rate.
      proximal_weight: lambda.
      weighting: of the average, "size" or "uniform".

    Returns:
      After every round, "global": w, "personalized": [N], the v_i.
    """
    personal_rate = s.learning_rate if personal_rate is None else personal_rate
    model, own = s.initial, [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort, received = list(s.cohorts[t]), model
        if cohort:
            trained = [s.train(received, t, i) for i in cohort]
            model = average(trained, s.sizes, cohort, weighting)
        for i in cohort:
            own[i] = personal_training(
                own[i],
                received,
                personal_batches[t][i],
                s.x,
                s.y,
                personal_rate[t],
                proximal_weight,
            )
        history.append({"global": model, "personalized": list(own)})
    return history
