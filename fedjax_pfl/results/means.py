"""Means over clients, of which some have no score."""

import numpy as np


def mean_over_clients(
    values: np.ndarray, weights: np.ndarray | None = None, counts: bool = False
) -> np.ndarray:
    """Return the mean [...] of values [..., N] that are not NaN; NaN where there is none.

    An infinite error counts.

    Args:
      values: one of each client.
      weights: of the clients, by default all equal.
      counts: round each product of value and weight to a whole number, as accuracies times numbers
        of samples are.
    """
    known = ~np.isnan(values)
    used = known if weights is None else known * weights
    products = np.where(used > 0, values, 0) * used
    total, amount = (np.rint(products) if counts else products).sum(axis=-1), used.sum(axis=-1)
    mean = np.where(amount > 0, total / np.where(amount > 0, amount, 1), np.nan)
    return mean.astype(values.dtype)
