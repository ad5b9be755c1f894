"""Rounds in which some layers are averaged and the others stay with their client."""

from tests.references.local_sgd import sgd
from tests.references.network import combine


def run(s, *, shared, weighting, train=sgd):
    """Whole models with every client; after a round all get the mean of the participants' layers.

    Args:
      shared: names of the layers that are averaged and put into all N models.
      weighting: "size" (n_i over the participants' sum) or "uniform".
      train: the local steps, train(model, batches, x, y, rate) -> model.

    Returns:
      After every round, {"personalized": [N models]}.
    """
    models = [s.initial for _ in s.clients]
    history = []
    for t in range(s.rounds):
        for i in s.cohorts[t]:
            models[i] = train(models[i], s.batches[t][i], s.x, s.y, s.learning_rate[t])
        if shared and len(s.cohorts[t]):
            shares = [s.sizes[i] if weighting == "size" else 1.0 for i in s.cohorts[t]]
            sent = [{layer: models[i][layer] for layer in shared} for i in s.cohorts[t]]
            mean = combine([share / sum(shares) for share in shares], sent)
            models = [{**model, **mean} for model in models]
        history.append({"personalized": list(models)})
    return history
