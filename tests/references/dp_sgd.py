"""DP-SGD: gradients of samples, clipped, summed and noisy (Abadi et al., CCS 2016, Algorithm 1)."""

import numpy as np

from tests.references.network import add, loss_and_gradient, scale, squared_norm, zeros_like


def private_gradient(params, batch, x, y, clip, batch_size, extra_gradient=None, layers=None):
    """sum over the batch of g_s min(1, clip / |g_s|) / batch_size, before the noise.

    Args:
      params, batch, x, y: as in `local_sgd.sgd`; a batch may be empty.
      clip: C.
      batch_size: the expected number of samples of a batch, whatever this one has.
      extra_gradient: a function of the parameters, part of every sample's gradient.
      layers: names of the layers that are trained: others have no part in norms, and are 0.
    """
    total = zeros_like(params)
    for sample in batch:
        _, gradient = loss_and_gradient(params, x[[sample]], y[[sample]])
        if extra_gradient is not None:
            gradient = add(gradient, extra_gradient(params))
        if layers is not None:
            fixed = {name: leaf for name, leaf in gradient.items() if name not in layers}
            gradient = {**gradient, **zeros_like(fixed)}
        norm = np.sqrt(squared_norm(gradient))
        total = add(total, scale(min(1.0, clip / norm) if norm > 0 else 1.0, gradient))
    return scale(1.0 / batch_size, total)
