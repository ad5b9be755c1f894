"""Base class of tasks that wrap another task."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import jax

from fedjax_pfl.models.task import Mode, Task
from fedjax_pfl.utils.typing import Key, Tree


@dataclass(frozen=True)
class WrappedTask(Task):
    """A task that forwards all calls to another one unless overridden.

    Attributes:
      network: the wrapped task.
    """

    network: Task

    @classmethod
    def around(cls, network: Task, *args: Any) -> Self:
        """Wrap a task, keeping its types, platform and objective."""
        same = {one.name: getattr(network, one.name) for one in fields(Task)}
        return cls(network, *args, **same)

    def bound(self, values: Mapping[str, Any], backbone: Tree) -> Task:
        return replace(self, network=self.network.bound(values, backbone))

    def fixed_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.fixed_leaves(key, inputs)

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.init(key, inputs)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        return self.network.embed(model, inputs, *mode)

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        return self.network.classify(model, features)

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        return self.network.losses(logits, labels)
