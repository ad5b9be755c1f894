"""The smallest value of a quadratic on the simplex, by trying every support."""

from itertools import combinations

import numpy as np


def smallest_quadratic(matrix):
    """The weights a >= 0 of sum 1 that minimize a^T P a, for a small matrix P.

    On each support the stationary point solves P a = mu, sum a = 1; the best feasible one wins.
    """
    count = len(matrix)
    best, found = np.inf, None
    for size in range(1, count + 1):
        for on in combinations(range(count), size):
            system = np.ones((size + 1, size + 1))
            system[:size, :size] = matrix[np.ix_(on, on)]
            system[:size, size], system[size, size] = -1.0, 0.0
            if np.linalg.cond(system) > 1e14:
                continue
            weights = np.zeros(count)
            weights[list(on)] = np.linalg.solve(system, np.eye(size + 1)[size])[:size]
            value = weights @ matrix @ weights
            if (weights >= 0).all() and value < best:
                best, found = value, weights
    return found
