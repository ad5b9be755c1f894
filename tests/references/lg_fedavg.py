"""LG-FedAvg (Liang et al., 2020, Algorithm 1, and `main_lg.py` of the published code)."""

from tests.references import partly_shared


def run(s, *, shared=("head",), weighting="uniform", warmup_rounds=0):
    """The global layers are averaged uniformly; every client's representation stays with it.

    Args:
      shared: names of the global layers.
      warmup_rounds: how many rounds of FedAvg, with the same weights, make the first model.
      weighting: "uniform" (the code's division by the number of participants), or "size".

    Returns:
      After every round, {"personalized": [N models]}.
    """
    count = min(warmup_rounds, s.rounds)
    warm, later = (
        s.but(
            rounds=len(range(*part.indices(s.rounds))),
            cohorts=s.cohorts[part],
            batches=s.batches[part],
            learning_rate=s.learning_rate[part],
        )
        for part in (slice(count), slice(count, None))
    )
    history = partly_shared.run(warm, shared=list(s.initial), weighting=weighting)
    first = history[-1]["personalized"][0] if history else s.initial
    return history + partly_shared.run(later.but(initial=first), shared=shared, weighting=weighting)
