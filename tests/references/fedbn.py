"""FedBN (Li et al., ICLR 2021, Algorithm 1)."""

from tests.references import partly_shared


def run(s, *, norms=("bn",), weighting="uniform", **options):
    """A layer that is not a batch normalization is averaged uniformly; one that is stays.

    Args:
      norms: names of the batch-norm layers: scale, bias and running statistics.
      weighting: "uniform" (the paper), or "size".
      **options: further ones of `partly_shared.run`.

    Returns:
      After every round, {"personalized": [N models]}.
    """
    others = [layer for layer in s.initial if layer not in norms]
    return partly_shared.run(s, shared=others, weighting=weighting, **options)
