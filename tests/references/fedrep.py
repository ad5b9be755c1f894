"""FedRep: shared representation, personal heads (Collins et al., ICML 2021, Algorithm 1)."""

from tests.references.averaging import average
from tests.references.local_sgd import sgd


def body_of(model):
    """The names of all layers but the head."""
    return [layer for layer in model if layer != "head"]


def run(s, *, head_batches, weighting="uniform", final_head_batches=None):
    """First a client's head is trained on the received body, then the body under that head.

    Args:
      head_batches: like `batches`, of the head's steps, which come first, the body frozen.
      weighting: of the bodies, "size" or "uniform".
      final_head_batches: [i], those of a pass over only the head, taken by every client after
        the last round.

    Returns:
      After every round, "body": the server's, "personalized": [N], it under each client's own
      last head, "trained": {client: model} before the average. With `final_head_batches` the
      last round also has "tuned": [N], the personalized models after that pass.
    """
    body = {layer: s.initial[layer] for layer in body_of(s.initial)}
    heads = [s.initial["head"] for _ in s.clients]
    history = []
    for t in range(s.rounds):
        trained = {}
        for i in s.cohorts[t]:
            model = {**body, "head": heads[i]}
            model = s.train(model, t, i, batches=head_batches[t][i], layers=["head"])
            model = s.train(model, t, i, layers=list(body))
            trained[i], heads[i] = model, model["head"]
        if trained:
            uploads = [{layer: model[layer] for layer in body} for model in trained.values()]
            body = average(uploads, s.sizes, list(trained), weighting)
        personalized = [{**body, "head": head} for head in heads]
        history.append({"body": body, "personalized": personalized, "trained": trained})
    if final_head_batches is not None and history:
        history[-1]["tuned"] = [
            sgd(model, own, s.x, s.y, s.learning_rate[s.rounds - 1], layers=["head"])
            for model, own in zip(personalized, final_head_batches, strict=True)
        ]
    return history
