"""Algorithms that use the head's parameters."""

import jax

from fedjax_pfl import core


def has_linear_head(federation: core.Federation) -> bool:
    """Return whether the head has only a kernel [features, classes] and a bias [classes]."""
    count, width = federation.data.num_classes, federation.num_features
    leaves = zip(federation.plan.paths, jax.tree.leaves(federation.model_shapes), strict=True)
    head = {path: leaf.shape for path, leaf in leaves if path.startswith("params/head/")}
    return head == {"params/head/kernel": (width, count), "params/head/bias": (count,)}
