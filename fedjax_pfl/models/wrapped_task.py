"""Base class of tasks that change another task: its models, its outputs, or further modules."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

import jax

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.models.task import Mode, Outputs, Task
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

T = TypeVar("T", bound=Task)
PREDICTS = "which the plain network can't compute; result.predict does."


@dataclass(frozen=True)
class WrappedTask(Task):
    """A task that changes another one, to which it forwards all calls with `own(model)`.

    A subclass may have further modules between the network's features and its head, or beside its
    head. They are entries of `params` beside the network's, which it names in `added`, draws in
    `draw`, and uses in `classify`, in which `super().classify(model, features)` are the network's
    own logits. `Federation.with_network` puts it around a federation's network.

    Attributes:
      network: the wrapped task.
      added: names of the further modules, a class attribute.
    """

    added: ClassVar[tuple[str, ...]] = ()

    network: Task

    @classmethod
    def around(cls, network: Task, *args: Any) -> Self:
        """Wrap a task, keeping its types, platform and objective."""
        same = {one.name: getattr(network, one.name) for one in fields(Task)}
        return cls(network, *args, **same)

    def sees_padding(self) -> bool:
        return self.network.sees_padding()

    @property
    def has_own_head(self) -> bool:
        """Whether its logits are its own function of the network's features, `classify`."""
        return type(self).classify is not WrappedTask.classify

    def own(self, model: Tree) -> Tree:
        """Return the network's model, by default without the further modules."""
        if not self.added:
            return model
        params = {name: x for name, x in model["params"].items() if name not in self.added}
        return {**model, "params": params}

    def calling(self) -> contextlib.AbstractContextManager[Any]:
        """Context of all calls of the network."""
        return contextlib.nullcontext()

    def draw(self, key: Key, inputs: jax.Array, model: Tree) -> dict[str, Tree]:
        """Return the initial parameters of the further modules by name.

        Args:
          key: another key than the network's.
          inputs: [B, ...], as for `init`.
          model: the network's initial model, without its frozen backbone.
        """
        raise NotImplementedError

    def bound(self, values: Mapping[str, Any], backbone: Tree) -> Task:
        return replace(self, network=self.network.bound(values, backbone))

    def frozen_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.frozen_leaves(key, inputs)

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        model = self.network.init(key, inputs)
        if not self.added:
            return model
        drawn = self.draw(jax.random.fold_in(key, 1), inputs, model)
        return {**model, "params": {**model["params"], **drawn}}

    def plain(self, model: Tree) -> Tree:
        if self.has_own_head:
            added = ", ".join(self.added)
            raise InputError(f"These models have further modules ({added}), {PREDICTS}")
        return self.network.plain(model)

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        if self.has_own_head:
            features, statistics = self.embed(model, inputs, *mode)
            return Outputs(self.classify(model, features), statistics, features)
        with self.calling():
            outputs: Any = self.network.apply(self.own(model), inputs, *mode)
        return Outputs(*outputs)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        with self.calling():
            return self.network.embed(self.own(model), inputs, *mode)

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        with self.calling():
            return self.network.classify(self.own(model), features)

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        return self.network.losses(logits, labels)

    def mean_loss(self, logits: jax.Array, batch: Batch) -> jax.Array:
        own = type(self).losses is not WrappedTask.losses
        return super().mean_loss(logits, batch) if own else self.network.mean_loss(logits, batch)


def part_of(task: Task, kind: type[T]) -> T | None:
    """Return the outermost wrapper of a class among those of a network, or None."""
    while isinstance(task, WrappedTask):
        if isinstance(task, kind):
            return task
        task = task.network
    return None
