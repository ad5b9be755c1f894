"""Optimizers of flat vectors, to optax's formulas: SGD with momentum, Adam, clipping."""

import numpy as np


def clipped(gradient, bound):
    """The gradient, no longer than `bound` (None: as it is)."""
    norm = np.linalg.norm(gradient)
    return gradient if bound is None or norm < bound else gradient * (bound / norm)


def sgd_step(vector, gradient, velocity, rate, momentum=0.0, weight_decay=0.0):
    """v <- momentum v + (g + weight_decay w), w <- w - rate v.

    `rate` is a number, or one for each element.

    Returns:
      (w, v).
    """
    velocity = momentum * velocity + gradient + weight_decay * vector
    return vector - rate * velocity, velocity


def adam_begin(vector):
    """(first moments, second moments, steps taken), all zero."""
    return np.zeros_like(vector), np.zeros_like(vector), 0


def adam_step(vector, gradient, state, rate, b1=0.9, b2=0.999, eps=1e-8, weight_decay=0.0):
    """w <- w - rate mhat / (sqrt(vhat) + eps), both moments freed of their bias towards 0.

    With `weight_decay` it is AdamW: rate weight_decay w is subtracted too.

    Returns:
      (w, (m, v, steps)).
    """
    first, second, steps = state
    first = b1 * first + (1.0 - b1) * gradient
    second = b2 * second + (1.0 - b2) * gradient**2
    steps += 1
    mean, square = first / (1.0 - b1**steps), second / (1.0 - b2**steps)
    slope = mean / (np.sqrt(square) + eps) + weight_decay * vector
    return vector - rate * slope, (first, second, steps)
