"""FedBN (Li et al., ICLR 2021, Algorithm 1)."""

from tests.references.local_sgd import sgd
from tests.references.network import combine


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
    norms=("bn",),
    weighting="uniform",
    train=sgd,
):
    """Layer by layer: a layer that is no batch normalisation is averaged, one that is stays.

    Args:
      initial: the model everybody begins with, running statistics among the leaves of `norms`.
      clients: one dict per client; only their number matters here.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      cohorts: per round, the participating clients.
      batches: batches[t][i] is the list of batches of client i in round t.
      learning_rate: one rate per round.
      norms: names of the batch-norm layers: scale, bias and running statistics.
      weighting: "uniform" (the paper), or "size".
      train: the local steps, train(model, batches, x, y, rate) -> model.

    Returns:
      After every round, {"personalized": [N models]}.
    """
    if weighting not in ("size", "uniform"):
        raise ValueError(f"Unknown weighting {weighting!r}.")
    models = [initial for _ in clients]
    history = []
    for t in range(rounds):
        for i in cohorts[t]:
            models[i] = train(models[i], batches[t][i], x, y, learning_rate[t])
        shares = [sizes[i] if weighting == "size" else 1.0 for i in cohorts[t]]
        for layer in initial:
            if layer in norms or not shares:
                continue
            weights = [share / sum(shares) for share in shares]
            mean = combine(weights, [{layer: models[i][layer]} for i in cohorts[t]])
            models = [{**model, **mean} for model in models]
        history.append({"personalized": list(models)})
    return history
