"""What a client's model is to the engine: how it starts, predicts, and what its loss is.

A model is a dict of collections: `"params"`, and statistics where a network keeps any. Everything
here sees one client's model and one minibatch; the client axis is the executor's business.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.errors import InputError
from fedjax_pfl.typing import Tree


@dataclass(frozen=True)
class Task:
    """Classification with one network; hashable and static. Subclasses say how it is called.

    Attributes:
      dtype: name of the floating type of parameters and inputs.
      compute_dtype: type that the network computes in, such as "bfloat16"; None for `dtype`.
        Parameters, their updates and averages, statistics and losses stay in `dtype`.
    """

    dtype: str = field(default="float32", kw_only=True)
    compute_dtype: str | None = field(default=None, kw_only=True)

    def init(self, key: jax.Array, inputs: jax.Array) -> Tree:
        """A fresh model for inputs [B, ...]."""
        raise NotImplementedError

    def apply(self, model: Tree, inputs, train: bool, rng, valid) -> tuple[jax.Array, Tree]:
        """(logits [B, C], the collections of statistics that changed; {} if none did)."""
        raise NotImplementedError

    def features(self, model: Tree, inputs: jax.Array) -> jax.Array:
        """What the head sees, [B, d]."""
        raise self.no_features()

    def embed(self, model: Tree, inputs, train: bool, rng, valid) -> tuple[jax.Array, Tree]:
        """(features [B, d], the statistics that changed): `apply` without the head."""
        raise self.no_features()

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        """What the head makes of features: logits [B, C]."""
        raise self.no_features()

    def no_features(self) -> InputError:
        """The error of a model that has no features, or no head of its own."""
        return InputError(
            f"The model of {type(self).__name__} does not say what its features and its head are; "
            "a linen module does with a method features(inputs) and a layer head, which __call__ "
            "applies to them."
        )

    def initial_model(self, key: jax.Array, inputs: jax.Array) -> Tree:
        """A fresh model with strongly typed floating leaves of the task's type."""

        def typed(leaf):
            leaf = jnp.asarray(leaf)
            floating = jnp.issubdtype(leaf.dtype, jnp.floating)
            return leaf.astype(self.dtype) if floating else leaf

        return jax.tree.map(typed, self.init(key, inputs))

    def predict(self, model: Tree, inputs: jax.Array) -> jax.Array:
        """Logits [B, C] in evaluation mode."""
        return self.outputs(model, inputs, False, None, None)[0]

    def outputs(self, model: Tree, inputs, train: bool, rng, valid) -> tuple[jax.Array, Tree]:
        """`apply`, computed in `compute_dtype`."""
        return self.computed(self.apply, model, inputs, train, rng, valid)

    def computed(self, fn: Callable, model: Tree, inputs, *rest) -> Any:
        """`fn(model, inputs, *rest)` in `compute_dtype`; what it returns is in `dtype` again."""
        if self.compute_dtype is None:
            return fn(model, inputs, *rest)

        def cast(leaf, dtype):
            return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        low = jax.tree.map(lambda leaf: cast(leaf, self.compute_dtype), model["params"])
        inputs = cast(inputs, self.compute_dtype)
        out = fn({**model, "params": low}, inputs, *rest)
        return jax.tree.map(lambda leaf: cast(leaf, self.dtype), out)

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Cross-entropy of every sample, [B]."""
        log_p = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(log_p, labels[:, None], axis=1)[:, 0]

    def loss(
        self, model: Tree, batch: Batch, rng: jax.Array | None = None, train: bool = True
    ) -> tuple[jax.Array, Tree]:
        """(mean loss over the batch's valid samples, model with updated statistics)."""
        logits, statistics = self.outputs(model, batch.inputs, train, rng, batch.valid)
        losses = jnp.where(batch.valid, self.losses(logits, batch.labels), 0)
        count = jnp.sum(batch.valid, dtype=losses.dtype)
        return jnp.sum(losses) / jnp.maximum(count, 1), {**model, **statistics}


@dataclass(frozen=True)
class LinenTask(Task):
    """A linen module, called as `module(inputs)`.

    Where its `__call__` takes `train` or `valid` (bool [B], which samples are no padding) it is
    handed them. Collections other than "params" are statistics, updated in training; the random
    stream "dropout" is there in training. A method `features(inputs)`, which may take `train` and
    `valid` too, says what the layer `head` sees.
    """

    module: nn.Module

    def _options(self, method, **options):
        arguments = inspect.signature(getattr(type(self.module), method)).parameters
        return {name: value for name, value in options.items() if name in arguments}

    def init(self, key, inputs):
        rngs = {"params": key, "dropout": key}
        return dict(self.module.init(rngs, inputs, **self._options("__call__", train=False)))

    def apply(self, model, inputs, train, rng, valid):
        return self._called("__call__", model, inputs, train, rng, valid)

    def embed(self, model, inputs, train, rng, valid):
        if not hasattr(self.module, "features"):
            raise self.no_features()
        return self._called("features", model, inputs, train, rng, valid)

    def classify(self, model, features):
        try:
            head = {"params": {"head": model["params"]["head"]}}
            return self.module.apply(head, features, method=lambda module, x: module.head(x))
        except (AttributeError, KeyError) as error:
            raise self.no_features() from error

    def _called(self, method, model, inputs, train, rng, valid):
        options = self._options(method, train=train, valid=valid)
        statistics = [name for name in model if name != "params"] if train else []
        rngs = {"dropout": rng} if train and rng is not None else None
        out = self.module.apply(
            model, inputs, rngs=rngs, mutable=statistics, method=method, **options
        )
        return out[0], dict(out[1])

    def features(self, model, inputs):
        if not hasattr(self.module, "features"):
            return super().features(model, inputs)
        return self.module.apply(model, inputs, method="features")


@dataclass(frozen=True)
class FunctionTask(Task):
    """A pair `init_fn(key, inputs) -> params` and `apply_fn(params, inputs) -> logits`."""

    init_fn: Callable
    apply_fn: Callable

    def init(self, key, inputs):
        return {"params": self.init_fn(key, inputs)}

    def apply(self, model, inputs, train, rng, valid):
        return self.apply_fn(model["params"], inputs), {}


def as_task(model: Any, dtype: str = "float32") -> Task:
    """A `Task` of a `Task`, a linen module, or an (init, apply) pair.

    Raises:
      InputError: anything else.
    """
    if isinstance(model, Task):
        return model
    if isinstance(model, nn.Module):
        return LinenTask(model, dtype=dtype)
    if isinstance(model, tuple) and len(model) == 2 and all(callable(f) for f in model):
        return FunctionTask(*model, dtype=dtype)
    raise InputError(
        "model must be a name, a flax.linen module, a Task or a pair of functions (init, apply), "
        f"got {type(model).__name__}."
    )
