"""FedRep: shared representation, personal heads (Collins et al., ICML 2021, Algorithm 1)."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd


def body_of(model):
    """The names of all layers but the head."""
    return [layer for layer in model if layer != "head"]


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
    head_batches,
    learning_rate,
    weighting="uniform",
    final_head_batches=None,
):
    """First a client's head is trained on the received body, then the body under that head.

    Args:
      initial: the model everybody begins with.
      clients: one dict per client; only their number matters here.
      rounds: how many rounds.
      x, y: the samples of all clients, addressed by the batches.
      sizes: n_i, the number of training samples of every client.
      cohorts: per round, the participating clients; nobody leaves the body as it is.
      batches: batches[t][i], those of the body's steps, the head frozen.
      head_batches: likewise of the head's steps, which come first, the body frozen.
      learning_rate: one rate per round.
      weighting: of the bodies, "size" or "uniform".
      final_head_batches: [i], those of a pass over only the head, taken by every client after
        the last round.

    Returns:
      After every round, "body": the server's, "personalized": [N], it under each client's own
      last head, "trained": {client: model} before the average. With `final_head_batches` the
      last round also has "tuned": [N], the personalized models after that pass.
    """
    body = {layer: initial[layer] for layer in body_of(initial)}
    heads = [initial["head"] for _ in clients]
    history = []
    for t in range(rounds):
        trained = {}
        for i in cohorts[t]:
            model = {**body, "head": heads[i]}
            model = sgd(model, head_batches[t][i], x, y, learning_rate[t], layers=["head"])
            model = sgd(model, batches[t][i], x, y, learning_rate[t], layers=list(body))
            trained[i], heads[i] = model, model["head"]
        if trained:
            uploads = [{layer: model[layer] for layer in body} for model in trained.values()]
            body = average(uploads, sizes, list(trained), weighting)
        personalized = [{**body, "head": head} for head in heads]
        history.append({"body": body, "personalized": personalized, "trained": trained})
    if final_head_batches is not None and history:
        history[-1]["tuned"] = [
            sgd(model, own, x, y, learning_rate[rounds - 1], layers=["head"])
            for model, own in zip(personalized, final_head_batches, strict=True)
        ]
    return history
