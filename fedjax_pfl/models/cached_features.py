"""Networks of which only the head is computed, on features that are stored as samples."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.models.heads import check_features
from fedjax_pfl.models.task import EVALUATION, Mode, Outputs, Task
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

DIFFERENT = (
    "cache_features needs features that are the same in training and evaluation, without dropout "
    "or batch normalization below the head."
)


@dataclass(frozen=True)
class HeadOnly(WrappedTask):
    """A network whose inputs are its features [B, d].

    Attributes:
      network: the task of the complete network.
      sample: shape and type of a batch of its inputs.
      data: the data before its samples were replaced by features, without samples.
    """

    sample: jax.ShapeDtypeStruct
    data: Any = field(default=None, compare=False, repr=False)

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.init(key, jnp.zeros(self.sample.shape, self.sample.dtype))

    def frozen_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        return self.network.frozen_leaves(key, jnp.zeros(self.sample.shape, self.sample.dtype))

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        return Outputs(self.classify(model, inputs), {}, inputs)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        return inputs, {}


def complete(task: Task, data: Any) -> tuple[Task, Any]:
    """Return the task of the complete network within a task, and the data that it takes."""
    if isinstance(task, HeadOnly):
        return task.network, task.data
    if isinstance(task, WrappedTask):
        network, data = complete(task.network, data)
        return replace(task, network=network), data
    return task, data


def check_frozen_features(task: Task, model: Tree, inputs: jax.ShapeDtypeStruct) -> None:
    """Refuse a network whose features depend on a client's model or are random in training.

    Args:
      task: the task, with frozen leaves.
      model: shapes of one client's model.
      inputs: shape of a batch.

    Raises:
      InputError: they do, or the model does not define its features and its head.
    """
    check_features(lambda: task, model, inputs)

    def features(model, inputs):
        return task.computed(task.embed, model, inputs, *EVALUATION)[0]

    def in_training(key, model, inputs, valid):
        return task.computed(task.embed, model, inputs, True, key, valid)[0]

    stack = jax.tree.map(lambda one: jax.ShapeDtypeStruct((2, *one.shape), one.dtype), model)
    try:  # refused if the features have the axis of the models
        jax.eval_shape(jax.vmap(features, (0, None), out_axes=None), stack, inputs)
    except ValueError as error:
        raise InputError(
            "cache_features needs features that no client trains: freeze all layers but the head."
        ) from error
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0)))
    valid = jax.ShapeDtypeStruct(inputs.shape[:1], bool)
    try:  # refused if the features have the axis of the random keys, however rarely they differ
        random = jax.vmap(in_training, (0, None, None, None), out_axes=None)
        jax.eval_shape(random, keys, model, inputs, valid)
    except ValueError as error:
        raise InputError(DIFFERENT) from error
