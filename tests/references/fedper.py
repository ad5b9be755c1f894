"""FedPer (Arivazhagan et al., 2019, Algorithms 1 and 2)."""

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
    personal=("head",),
    weighting="size",
    train=sgd,
):
    """Base layers on the server, personalization layers with each client; trained together.

    Args:
      initial: the model everybody begins with.
      clients: one dict per client; only their number matters here.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      cohorts: per round, the participating clients; nobody leaves the base as it is.
      batches: batches[t][i] is the list of batches of client i in round t.
      learning_rate: one rate per round.
      personal: names of the personalization layers.
      weighting: "size" (n_i over the participants' sum) or "uniform".
      train: the local steps, train(model, batches, x, y, rate) -> model.

    Returns:
      After every round, {"personalized": [N models]}: the server's base and the client's own
      layers.
    """
    if weighting not in ("size", "uniform"):
        raise ValueError(f"Unknown weighting {weighting!r}.")
    base = {layer: leaves for layer, leaves in initial.items() if layer not in personal}
    own = [{layer: initial[layer] for layer in personal} for _ in clients]
    history = []
    for t in range(rounds):
        uploads, shares = [], []
        for i in cohorts[t]:
            model = train({**base, **own[i]}, batches[t][i], x, y, learning_rate[t])
            own[i] = {layer: model[layer] for layer in personal}
            uploads.append({layer: model[layer] for layer in base})
            shares.append(sizes[i] if weighting == "size" else 1.0)
        if uploads and base:
            base = combine([share / sum(shares) for share in shares], uploads)
        history.append({"personalized": [{**base, **mine} for mine in own]})
    return history
