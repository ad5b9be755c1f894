"""What a client does between two messages: plain minibatch SGD."""

from tests.references.network import add, loss_and_gradient, scale, subtract


def sgd(params, batches, x, y, learning_rate, extra_gradient=None, layers=None):
    """theta <- theta - eta (g_b(theta) + extra(theta)), once for every batch, in order.

    Args:
      params: the model to start from; it's left as it is.
      batches: one array of sample indices into x and y per step; an empty list means no step.
      x, y: all samples [n, d] and labels [n].
      learning_rate: eta.
      extra_gradient: a function of the current parameters, added to every gradient.
      layers: names of the layers that move; all by default.
    """
    for batch in batches:
        if len(batch) == 0:
            raise ValueError("A batch without samples is not a step: leave it out.")
        _, gradient = loss_and_gradient(params, x[batch], y[batch])
        if extra_gradient is not None:
            gradient = add(gradient, extra_gradient(params))
        moved = subtract(params, scale(learning_rate, gradient))
        params = moved if layers is None else {**params, **{name: moved[name] for name in layers}}
    return params


def repeated(batches, times):
    """The batches with each standing `times` times in a row."""
    return [batch for batch in batches for _ in range(times)]
