"""pFedMe: personal models by Moreau envelopes (Dinh et al., NeurIPS 2020, Algorithm 1)."""

from tests.references.averaging import average
from tests.references.network import add, combine, loss_and_gradient, scale, subtract


def nearby(start, local, x, y, rate, steps, proximal_weight, decay):
    """theta after `steps` steps on one minibatch towards the least f_b + lambda/2 ||. - w_i||^2.

    theta <- theta - eta_p (g_b(theta) + lambda (theta - w_i) + mu theta).
    """
    theta = start
    for _ in range(steps):
        _, gradient = loss_and_gradient(theta, x, y)
        gradient = add(gradient, scale(proximal_weight, subtract(theta, local)))
        gradient = add(gradient, scale(decay, theta))
        theta = subtract(theta, scale(rate, gradient))
    return theta


def run(
    s,
    *,
    personal_rate,
    proximal_weight=15.0,
    inner_steps=5,
    server_rate=1.0,
    decay=0.001,
    weighting="size",
    participants="all",
):
    """Local models w_i move towards personal ones theta_i, which are nearby minima.

    Args:
      personal_rate: eta_p, one per round.
      proximal_weight: lambda.
      inner_steps: K.
      server_rate: beta of w <- (1 - beta) w + beta sum_i p_i w_i.
      decay: mu of the inner steps, which only the published code has.
      weighting: p_i by "size" (the published code) or "uniform" (the paper).
      participants: "all" train and the cohort is averaged (Algorithm 1 and the published code);
        "sampled", only the cohort trains.

    Returns:
      After every round, "global": w, "personalized": [N], the last theta_i (at first the initial
      model), "trained": {client: w_i} of those that trained.
    """
    model, personal = s.initial, [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort, trained = list(s.cohorts[t]), {}
        for i in cohort if participants == "sampled" else range(len(s.clients)):
            local = theta = model  # both begin at what was received
            for batch in s.batches[t][i]:
                theta = nearby(
                    theta,
                    local,
                    s.x[batch],
                    s.y[batch],
                    personal_rate[t],
                    inner_steps,
                    proximal_weight,
                    decay,
                )
                away = subtract(local, theta)
                local = subtract(local, scale(s.learning_rate[t] * proximal_weight, away))
            trained[i], personal[i] = local, theta
        if cohort:
            mean = average([trained[i] for i in cohort], s.sizes, cohort, weighting)
            model = combine([1.0 - server_rate, server_rate], [model, mean])
        history.append({"global": model, "personalized": list(personal), "trained": trained})
    return history
