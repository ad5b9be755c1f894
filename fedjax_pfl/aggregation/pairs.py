"""Mixtures of a client's own model v and a shared model w with weight alpha of v.

Either parameters are mixed, which results in one model, or logits: then the pair is the model of
the task `fedjax_pfl.models.mixtures.Mixture`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_pfl.utils.typing import Tree

OWN, SHARED, ALPHA = "own", "shared", "alpha"


class Pair(NamedTuple):
    """Models v and w of one network, and the weight of v."""

    own: Tree
    shared: Tree
    alpha: Tree

    def model(self) -> Tree:
        """Return the pair as one model; of stacks [k, ...] and weights [k] their stack."""
        both = {name: {OWN: own, SHARED: self.shared[name]} for name, own in self.own.items()}
        return {**both, "params": {**both["params"], ALPHA: self.alpha}}


def is_pair(model: Tree) -> bool:
    """Return whether a model is a pair, see `Pair.model`."""
    params = model["params"]
    return isinstance(params, dict) and params.keys() == {OWN, SHARED, ALPHA}


def parts(model: Tree) -> Pair:
    """Invert `Pair.model`, also for trees like it, such as gradients."""
    own, shared = ({name: both[which] for name, both in model.items()} for which in (OWN, SHARED))
    return Pair(own, shared, model["params"][ALPHA])


def blend(own: Tree, shared: Tree, alpha: jax.Array) -> Tree:
    """Return alpha v + (1 - alpha) w of two trees and a weight []; counters are those of v."""

    def mixed(v, w):
        if not jnp.issubdtype(v.dtype, jnp.inexact):
            return v
        return (alpha * v + (1 - alpha) * w).astype(v.dtype)

    return jax.tree.map(mixed, own, shared)
