"""LG-FedAvg (Liang et al., 2020, Algorithm 1, and `main_lg.py` of the published code)."""

from tests.references.local_sgd import sgd
from tests.references.network import add, scale


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
    shared=("head",),
    weighting="uniform",
    train=sgd,
):
    """Whole models with every client; after a round all get the mean of the participants' top.

    Args:
      initial: the model everybody begins with.
      clients: one dict per client; only their number matters here.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      cohorts: per round, the participating clients.
      batches: batches[t][i] is the list of batches of client i in round t.
      learning_rate: one rate per round.
      shared: names of the layers that are averaged and put into all N models.
      weighting: "uniform" (the code's division by the number of participants), or "size".
      train: the local steps, train(model, batches, x, y, rate) -> model.

    Returns:
      After every round, {"personalized": [N models]}.
    """
    if weighting not in ("size", "uniform"):
        raise ValueError(f"Unknown weighting {weighting!r}.")
    models = [initial for _ in clients]
    history = []
    for t in range(rounds):
        total, weight = None, 0.0
        for i in cohorts[t]:
            models[i] = train(models[i], batches[t][i], x, y, learning_rate[t])
            share = sizes[i] if weighting == "size" else 1.0
            top = scale(share, {layer: models[i][layer] for layer in shared})
            total, weight = (top if total is None else add(total, top)), weight + share
        if total:
            mean = scale(1 / weight, total)
            models = [{**model, **mean} for model in models]
        history.append({"personalized": list(models)})
    return history
