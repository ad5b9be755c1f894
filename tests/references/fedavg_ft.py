"""FedAvg with fine-tuning at evaluation (Wang et al., 2019, federated evaluation)."""

from tests.references import fedavg
from tests.references.local_sgd import sgd
from tests.references.network import scale, subtract


def fine_tune(params, batches, x, y, learning_rate, proximal_weight=0.0):
    """The model one client is scored with: the global one w, trained further on its own batches.

    v <- v - eta (g_b(v) + proximal_weight (v - w)), from v = w on.
    """

    def towards(model):
        return scale(proximal_weight, subtract(model, params))

    return sgd(params, batches, x, y, learning_rate, towards if proximal_weight else None)


def budget(factor, size, batch_size):
    """Steps of the fine-tuning in Ditto's repository: max(F n_i / B, F), F a whole number."""
    return max(int(factor * size / batch_size), factor)


def run(
    s,
    *,
    tuning_batches=None,
    tuning_budget=None,
    tuning_proximal_weight=0.0,
    train=fedavg.run,
    **options,
):
    """Trains as FedAvg does; fine-tuned models are scored and thrown away.

    Args:
      tuning_batches: tuning_batches[t][i] is the list of batches that client i fine-tunes on
        when the model after round t is scored; None leaves the fine-tuned models out, of all
        rounds or of one.
      tuning_budget: (F, B): fine-tune only after the last round, on the first `budget(F, n_i, B)`
        batches; None fine-tunes after every round, on all batches.
      tuning_proximal_weight: of a pull towards the global model while fine-tuning.
      train: the reference that trains the global model.
      **options: its options.

    Returns:
      After every round, {"global": model} and, where asked for, "personalized": [N models].
    """
    history = train(s, **options)
    for t, models in enumerate(history):
        if tuning_batches is None or tuning_batches[t] is None:
            continue
        if tuning_budget is not None and t < s.rounds - 1:
            continue
        models["personalized"] = []
        for i, batches in enumerate(tuning_batches[t]):
            if tuning_budget is not None:
                epochs, batch_size = tuning_budget
                steps = budget(epochs, s.sizes[i], batch_size)
                assert len(batches) >= steps
                batches = batches[:steps]
            rate = s.learning_rate[t]
            tuned = fine_tune(models["global"], batches, s.x, s.y, rate, tuning_proximal_weight)
            models["personalized"].append(tuned)
    return history
