"""FedBN (Li et al., ICLR 2021, Algorithm 1)."""

from tests.references import partly_shared


def run(initial, clients, rounds, *, norms=("bn",), weighting="uniform", **training):
    """A layer that is not a batch normalization is averaged uniformly; one that is stays.

    Args:
      initial, clients, rounds, **training: as in `partly_shared.run`; running statistics are
        among the leaves of `norms`.
      norms: names of the batch-norm layers: scale, bias and running statistics.
      weighting: "uniform" (the paper), or "size".

    Returns:
      After every round, {"personalized": [N models]}.
    """
    others = [layer for layer in initial if layer not in norms]
    return partly_shared.run(
        initial, clients, rounds, shared=others, weighting=weighting, **training
    )
