"""Mixtures of the predictions of two models of one network."""

from dataclasses import dataclass

import jax

from fedjax_pfl.aggregation import pairs
from fedjax_pfl.models.task import Mode, Outputs, Task
from fedjax_pfl.models.wrapped_task import PREDICTS, WrappedTask
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Tree


@dataclass(frozen=True)
class Mixture(WrappedTask):
    """A network that may mix the logits of two models: alpha f(v) + (1 - alpha) f(w).

    A model that is a pair (`pairs.Pair.model`) has these logits and no features. Any other model,
    such as an initial one, is the network's own.

    Attributes:
      network: the task of a single model.
    """

    def plain(self, model: Tree) -> Tree:
        if pairs.is_pair(model):
            raise InputError(f"These models mix the predictions of two, {PREDICTS}")
        return self.network.plain(model)

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        # `outputs`: the network computes in its own type, and logits are mixed in `dtype`.
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


def mixture(task: Task) -> Mixture:
    """Return a `Mixture` of a task."""
    return Mixture(task, dtype=task.dtype, platform=task.platform, objective=task.objective)
