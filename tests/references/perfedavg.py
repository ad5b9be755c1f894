"""Per-FedAvg: a first model that one local step adapts (Fallah et al., NeurIPS 2020, Algorithm 1).

The synchronous algorithm; `perfedavg_spfl` and `perfedavg_async` are what another paper ran.
"""

from tests.references.averaging import average
from tests.references.local_sgd import sgd
from tests.references.network import (
    add,
    hessian_vector_product,
    loss_and_gradient,
    scale,
    subtract,
    zeros_like,
)

VARIANTS = {"first_order": 2, "hessian_free": 3}  # minibatches of a step
PRODUCTS = ("exact", "differences")


def gradient_of(params, batch, x, y):
    """The gradient on a minibatch; zero on one without samples."""
    return loss_and_gradient(params, x[batch], y[batch])[1] if len(batch) else zeros_like(params)


def hessian_product(params, batch, direction, x, y, product, delta):
    """H_b(w) d, exact or as (g_b(w + delta d) - g_b(w - delta d)) / (2 delta)."""
    if not len(batch):
        return zeros_like(params)
    if product == "exact":
        return hessian_vector_product(params, x[batch], y[batch], direction)
    ahead = gradient_of(add(params, scale(delta, direction)), batch, x, y)
    behind = gradient_of(subtract(params, scale(delta, direction)), batch, x, y)
    return scale(0.5 / delta, subtract(ahead, behind))


def meta_gradient(params, batches, x, y, inner_rate, product="exact", delta=1e-3):
    """g_2(w - alpha g_1(w)), times (I - alpha H_3(w)) where there is a third minibatch."""
    inner = subtract(params, scale(inner_rate, gradient_of(params, batches[0], x, y)))
    outer = gradient_of(inner, batches[1], x, y)
    if len(batches) == 2:
        return outer
    bent = hessian_product(params, batches[2], outer, x, y, product, delta)
    return subtract(outer, scale(inner_rate, bent))


def run(
    s,
    *,
    variant="first_order",
    inner_rate=None,
    outer_rate=None,
    product="exact",
    delta=0.001,
    weighting="size",
    adapt_batches=None,
):
    """FedAvg whose clients descend the loss after one further step.

    Args:
      variant: one of `VARIANTS`.
      inner_rate, outer_rate: alpha and beta, one per round; None takes the learning rate.
      product, delta: how "hessian_free" multiplies, one of `PRODUCTS`, and the differences' width.
      weighting: of the average, "size" or "uniform" (the paper).
      adapt_batches: adapt_batches[t][i] is the list of batches of client i's own samples on which
        it adapts the model after round t at rate alpha, one for each step; None leaves it out.

    Returns:
      After every round, {"global": model} and, where asked for, "personalized": [N models].
    """
    inner_rate = s.learning_rate if inner_rate is None else inner_rate
    outer_rate = s.learning_rate if outer_rate is None else outer_rate
    model = s.initial
    history = []
    for t in range(s.rounds):
        cohort, trained = list(s.cohorts[t]), []
        for i in cohort:
            own = model
            for step in s.batches[t][i]:
                if len(step) != VARIANTS[variant]:
                    raise ValueError(f"{variant} takes {VARIANTS[variant]} minibatches a step.")
                slope = meta_gradient(own, step, s.x, s.y, inner_rate[t], product, delta)
                own = subtract(own, scale(outer_rate[t], slope))
            trained.append(own)
        if cohort:
            model = average(trained, s.sizes, cohort, weighting)
        models = {"global": model}
        if adapt_batches is not None:
            models["personalized"] = [
                sgd(model, own, s.x, s.y, inner_rate[t]) for own in adapt_batches[t]
            ]
        history.append(models)
    return history
