"""SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020, Algorithm 1)."""

from tests.references.network import add, combine, loss_and_gradient, scale, subtract, zeros_like

CONTROL_UPDATES = ("gradients", "option_two")


def corrected_sgd(params, batches, x, y, learning_rate, correction):
    """y <- y - eta (g_b(y) + correction), once per batch.

    Returns:
      The trained model and the sum of the raw minibatch gradients g_b along its path.
    """
    total = zeros_like(params)
    for batch in batches:
        _, gradient = loss_and_gradient(params, x[batch], y[batch])
        total = add(total, gradient)
        params = subtract(params, scale(learning_rate, add(gradient, correction)))
    return params, total


def train_client(received, own, server, batches, x, y, learning_rate, control_update="gradients"):
    """One client: its trained model and its new control variate c_i^+.

    Args:
      received: x, the model it starts from.
      own, server: its control variate c_i and the server's c.
      batches: its batches; without any, both results are what they were.
      control_update: "gradients", the mean of the raw minibatch gradients along the path;
        "option_two", c_i - c + (x - y_i) / (K eta). The two are equal for plain SGD.
    """
    steps = len(batches)
    if steps == 0:
        return received, own
    trained, total = corrected_sgd(received, batches, x, y, learning_rate, subtract(server, own))
    if control_update == "gradients":
        return trained, scale(1.0 / steps, total)
    travelled = scale(1.0 / (steps * learning_rate), subtract(received, trained))
    return trained, add(subtract(own, server), travelled)


def run(s, *, server_rate=1.0, control_update="gradients"):
    """One global model; every client steps along g_i - c_i + c. Clients weigh the same.

    Args:
      server_rate: eta_g.
      control_update: how c_i^+ is had, one of `CONTROL_UPDATES`.

    Returns:
      After every round, "global": x, "control": c, "controls": [N], the clients' c_i.
    """
    model = s.initial
    control = zeros_like(s.initial)
    controls = [zeros_like(s.initial) for _ in s.clients]
    history = []
    for t in range(s.rounds):
        cohort = list(s.cohorts[t])
        trained, renewed = {}, {}
        for i in cohort:
            trained[i], renewed[i] = train_client(
                model,
                controls[i],
                control,
                s.batches[t][i],
                s.x,
                s.y,
                s.learning_rate[t],
                control_update,
            )
        if cohort:
            moves = [subtract(trained[i], model) for i in cohort]
            changes = [subtract(renewed[i], controls[i]) for i in cohort]
            uniform = [1.0 / len(cohort)] * len(cohort)
            model = add(model, scale(server_rate, combine(uniform, moves)))
            control = add(control, combine([1.0 / len(s.clients)] * len(cohort), changes))
            for i in cohort:
                controls[i] = renewed[i]
        history.append({"global": model, "control": control, "controls": list(controls)})
    return history
