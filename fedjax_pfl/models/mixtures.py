"""Predictions of two models of one network, mixed by a weight."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from fedjax_pfl.aggregation import pairs
from fedjax_pfl.models.task import Mode, Outputs, Task
from fedjax_pfl.utils.typing import Key, Tree


@dataclass(frozen=True)
class Mixture(Task):
    """A network of which two models may predict together: alpha f(v) + (1 - alpha) f(w).

    These logits are those of a pair as one model (`pairs.Pair.model`), which names no features. Any
    other model is the network's own; initial ones are.

    Attributes:
      network: the task of a single model.
    """

    network: Task

    def bound(self, values: Mapping[str, Any], backbone: Tree) -> Task:
        return replace(self, network=self.network.bound(values, backbone))

    def fixed_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.fixed_leaves(key, inputs)

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.init(key, inputs)

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        # By `outputs`: the network computes in its own type, and logits are mixed in `dtype`.
        if not pairs.is_pair(model):
            return self.network.outputs(model, inputs, *mode)
        own, shared, alpha = pairs.parts(model)
        one, other = (self.network.outputs(part, inputs, *mode) for part in (own, shared))
        logits = alpha * one.logits + (1 - alpha) * other.logits
        both = {
            name: {pairs.OWN: tree, pairs.SHARED: other.statistics[name]}
            for name, tree in one.statistics.items()
        }
        return Outputs(logits, both)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        return self.network.embed(model, inputs, *mode)

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        return self.network.classify(model, features)

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        return self.network.losses(logits, labels)


def mixture(task: Task) -> Mixture:
    """`Mixture` of a task; one that is a mixture already is returned unchanged."""
    if isinstance(task, Mixture):
        return task
    return Mixture(task, dtype=task.dtype, platform=task.platform, objective=task.objective)
