"""LG-FedAvg (Liang et al., 2020, Algorithm 1, and `main_lg.py` of the published code)."""

from tests.references import partly_shared


def run(
    initial,
    clients,
    rounds,
    *,
    shared=("head",),
    weighting="uniform",
    warmup_rounds=0,
    **training,
):
    """The global layers are averaged uniformly; every client's representation stays with it.

    Args:
      initial, clients, rounds, **training: as in `partly_shared.run`.
      shared: names of the global layers.
      warmup_rounds: how many rounds of FedAvg, with the same weights, make the first model.
      weighting: "uniform" (the code's division by the number of participants), or "size".

    Returns:
      After every round, {"personalized": [N models]}.
    """
    by_round = ("cohorts", "batches", "learning_rate")
    warm = {name: training[name][:warmup_rounds] for name in by_round}
    later = {name: training[name][warmup_rounds:] for name in by_round}
    count = min(warmup_rounds, rounds)
    history = partly_shared.run(
        initial, clients, count, shared=list(initial), weighting=weighting, **training | warm
    )
    first = history[-1]["personalized"][0] if history else initial
    return history + partly_shared.run(
        first, clients, rounds - count, shared=shared, weighting=weighting, **training | later
    )
