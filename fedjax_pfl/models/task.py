"""Tasks: initialization, prediction and loss of one client's model.

A model is a dict of collections: `"params"`, and statistics if the network has any. Everything here
sees one client's model and one minibatch; the engine adds the client axis.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.models import convolutions
from fedjax_pfl.models.kernels import forms
from fedjax_pfl.models.normalization import masked_in_linen
from fedjax_pfl.models.objectives import CLASSIFICATION, Objective
from fedjax_pfl.utils.conversions import accepted
from fedjax_pfl.utils.errors import InputError, refused
from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.typing import Key, Tree

# How a network runs on a minibatch, (train, rng, valid): whether in training; the key of its random
# numbers, None if it draws none; bool [B], which samples are not padding, None for all.
Mode = tuple[bool, Key | None, jax.Array | None]
EVALUATION: Mode = (False, None, None)


class Outputs(NamedTuple):
    """A network's outputs on a minibatch.

    Attributes:
      logits: [B, C].
      statistics: the collections of statistics that changed; {} if none did.
      features: the head's inputs, [B, d]; None if the network doesn't define them.
    """

    logits: jax.Array
    statistics: Tree
    features: jax.Array | None = None


@struct
class ForwardedBatch(Batch):
    """A minibatch and the model's outputs, for regularizers.

    Attributes:
      logits: [B, C], of the same forward pass as the minibatch loss; rows that are not `valid` are
        padding.
      maybe_features: the features, or None if the model doesn't define them.
    """

    logits: jax.Array
    maybe_features: jax.Array | None

    @property
    def features(self) -> jax.Array:
        """The head's inputs, [B, d], of the same forward pass.

        Raises:
          InputError: the model doesn't define its features.
        """
        return _known(self.maybe_features)


class Forward(NamedTuple):
    """One forward pass over a minibatch.

    Attributes:
      loss: [], mean over the valid samples.
      model: with updated statistics.
      batch: the minibatch, with logits and features.
    """

    loss: jax.Array
    model: Tree
    batch: ForwardedBatch


def _known(features: jax.Array | None) -> jax.Array:
    if features is None:
        raise InputError(
            "The model does not define its features. A linen, NNX or Equinox module does with a "
            "method features(inputs) that its __call__ calls, a linen module also with "
            "self.sow('intermediates', 'features', x); a Task with the features of its Outputs."
        )
    return features


def _cast(leaf: jax.Array, dtype: Any) -> jax.Array:
    """Return a floating leaf in another type; others as they are."""
    return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


@dataclass(frozen=True)
class Task:
    """Network and objective; hashable and static. Subclasses define the calls.

    Attributes:
      dtype: name of the floating type of parameters and inputs.
      compute_dtype: type of the network's computations, such as "bfloat16"; None for `dtype`.
        Parameters, their updates and averages, statistics and losses stay in `dtype`.
      platform: "cpu", "gpu" or "tpu", the target of the program, by which this package's layers
        choose their form; None for that of a task around this one, or "cpu".
      convolutions: "auto", or "xla" for XLA's convolutions and pooling on every platform.
      objective: loss and measures; by default those of the data set's task.
    """

    dtype: str = field(default="float32", kw_only=True)
    compute_dtype: str | None = field(default=None, kw_only=True)
    platform: str | None = field(default=None, kw_only=True)
    convolutions: str = field(default="auto", kw_only=True)
    objective: Objective = field(default=CLASSIFICATION, kw_only=True)

    def init(self, key: jax.Array, inputs: jax.Array) -> Tree:
        """Return an initial model for inputs [B, ...]."""
        raise NotImplementedError

    def plain(self, model: Tree) -> Tree:
        """Return a model as the user's own network takes it, with all its leaves.

        Raises:
          InputError: the model is more than that network's.
        """
        return model

    def apply(
        self, model: Tree, inputs: jax.Array, *mode: *Mode
    ) -> Outputs | tuple[jax.Array, Tree]:
        """Return `Outputs`, or a pair (logits, statistics).

        A subclass may name the mode's parts: `apply(self, model, inputs, train, rng, valid)`.
        """
        raise NotImplementedError

    def features(self, model: Tree, inputs: jax.Array) -> jax.Array:
        """Return the head's inputs, [B, d], in evaluation mode, of any model.

        Raises:
          InputError: the model doesn't define its features.
        """
        return _known(self.outputs(model, inputs, *EVALUATION).features)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        """Return (features [B, d], the statistics that changed): `apply` without the head."""
        raise self.no_head()

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        """Return the head's logits [B, C] of features."""
        raise self.no_head()

    def bound(self, values: Mapping[str, Any], backbone: Tree) -> "Task":
        """Return the task with initial values and frozen leaves, see `frozen_backbone`."""
        return self

    def frozen_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        """Return the leaves that no client's model contains, see `frozen_backbone`."""
        return {}

    def sees_padding(self) -> bool:
        """Return whether the network can leave padding out of its statistics."""
        return True

    def no_head(self) -> InputError:
        """Return the error for a model without features or without a head of its own."""
        return InputError(
            f"The model of {type(self).__name__} does not define its features and its head; "
            "a linen, NNX or Equinox module does with a method features(inputs) and a layer head, "
            "which __call__ applies to them."
        )

    def initial_model(self, key: jax.Array, inputs: jax.Array) -> Tree:
        """Return an initial model with strongly typed floating leaves of the task's type."""
        drawn = jax.tree.map(jnp.asarray, self.init(key, inputs))
        return jax.tree.map(lambda leaf: _cast(leaf, self.dtype), drawn)

    def predict(self, model: Tree, inputs: jax.Array) -> jax.Array:
        """Return logits [B, C] in evaluation mode."""
        return self.outputs(model, inputs, *EVALUATION).logits

    def outputs(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        """Call `apply` by `computed`."""
        return Outputs(*self.computed(self.apply, model, inputs, *mode))

    def computed(self, fn: Callable[..., Any], model: Tree, inputs: jax.Array, *rest: Any) -> Any:
        """Return `fn(model, inputs, *rest)`, computed in `compute_dtype` and cast to `dtype`.

        Its layers have the form for `platform`.
        """
        low = self.compute_dtype
        with forms.for_platform(self.platform, self.convolutions == "xla"):
            if low is None:
                return fn(model, inputs, *rest)
            params = jax.tree.map(lambda leaf: _cast(leaf, low), model["params"])
            out = fn({**model, "params": params}, _cast(inputs, low), *rest)
        return jax.tree.map(lambda leaf: _cast(leaf, self.dtype), out)

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        """Return every sample's loss, [B], of the objective in the platform's form."""
        with forms.for_platform(self.platform):
            return self.objective.losses(logits, labels)

    def mean_loss(self, logits: jax.Array, batch: Batch) -> jax.Array:
        """Return the mean loss of logits [B, ...] over a batch's valid samples, []."""
        losses = jnp.where(batch.valid, self.losses(logits, batch.labels), 0)
        count = jnp.sum(batch.valid, dtype=losses.dtype)
        return jnp.sum(losses) / jnp.maximum(count, 1)

    def forward(
        self, model: Tree, batch: Batch, rng: jax.Array | None = None, train: bool = True
    ) -> Forward:
        """Run one pass over a minibatch; return its loss, and the batch for regularizers."""
        out = self.outputs(model, batch.inputs, train, rng, batch.valid)
        loss = self.mean_loss(out.logits, batch)
        seen = ForwardedBatch(batch.inputs, batch.labels, batch.valid, out.logits, out.features)
        return Forward(loss, {**model, **out.statistics}, seen)

    def loss(
        self, model: Tree, batch: Batch, rng: jax.Array | None = None, train: bool = True
    ) -> tuple[jax.Array, Tree]:
        """Return (mean loss over the batch's valid samples, model with updated statistics)."""
        loss, model, _ = self.forward(model, batch, rng, train)
        return loss, model


@dataclass(frozen=True)
class LinenTask(Task):
    """A linen module, called as `module(inputs)`.

    If its `__call__` has parameters `train` or `valid` (bool [B], which samples are not padding),
    they are passed. Collections other than "params" are statistics, updated in training. Training
    has the random stream "dropout". The features are what a method `features` returns while
    `__call__` runs; a module without one may define them with
    `self.sow("intermediates", "features", x)`. For another head on them (`embed`, `classify`), the
    method takes the inputs and perhaps `train` and `valid`, and `__call__` applies the layer
    `head`. Its `nn.Conv` layers are computed by `convolutions`.
    """

    module: nn.Module

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        rngs = {"params": key, "dropout": key}
        options = passed(type(self.module).__call__, train=False, valid=None)
        return dict(self.module.init(rngs, inputs, **options))

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        return self._called("__call__", model, inputs, *mode)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        if not hasattr(self.module, "features"):
            raise self.no_head()
        features, statistics, _ = self._called("features", model, inputs, *mode)
        return features, statistics

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        try:
            head = {"params": {"head": model["params"]["head"]}}
            logits = self.module.apply(head, features, method=lambda module, x: module.head(x))
        except (AttributeError, KeyError) as error:
            raise self.no_head() from error
        assert not isinstance(logits, tuple)  # as no collection is mutable
        return logits

    def _called(self, method, model, inputs, train, rng, valid):
        options = passed(getattr(type(self.module), method), train=train, valid=valid)
        statistics = [name for name in model if name != "params"] if train else []
        rngs = {"dropout": rng} if train and rng is not None else None
        with convolutions.in_linen(), masked_in_linen(valid):
            out, changed = self.module.apply(
                model,
                inputs,
                rngs=rngs,
                method=method,
                mutable=[*statistics, "intermediates"],
                capture_intermediates=_is_features,
                **options,
            )
        changed = dict(changed)
        # The last one, as a method that calls super() records that result, too.
        (*_, features) = (None, *changed.pop("intermediates", {}).get("features", ()))
        return Outputs(out, changed, features)


def _is_features(module: nn.Module, method: str) -> bool:
    return method == "features" and module.path == ()


@dataclass(frozen=True)
class FunctionTask(Task):
    """A pair `init_fn(key, inputs) -> params` and `apply_fn(params, inputs) -> logits`."""

    init_fn: Callable[..., Any]
    apply_fn: Callable[..., Any]

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        return {"params": self.init_fn(key, inputs)}

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        return Outputs(self.apply_fn(model["params"], inputs), {})


def passed(
    method: Callable[..., Any],
    instead: str = "name it 'train' (true while training), or make it a field of the module",
    **options: Any,
) -> dict[str, Any]:
    """Return those of the options that a module's method has parameters for.

    Raises:
      InputError: it has another flag or required parameter, so it would train as in evaluation.
    """
    for one in [*inspect.signature(method).parameters.values()][2:]:  # behind self and inputs
        given = one.name in options or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        flag = isinstance(one.default, bool) or one.annotation in (bool, "bool")
        if (flag or one.default is one.empty) and not given:
            what = f"{method.__name__} takes {one.name!r}, which nothing sets"
            raise InputError(f"{what}: {instead}.")
    return accepted(method, **options)


def has_features(module: Any) -> bool:
    """Return whether a module has a method `features`, and no number or layer of the name."""
    return callable(getattr(type(module), "features", None))


@contextlib.contextmanager
def watched_features(module: Any) -> Iterator[list[Any]]:
    """Yield a list to which calls of a module's method `features` add their results."""
    seen = []
    if has_features(module):
        features = module.features
        spy = lambda *a, **k: seen.append(features(*a, **k)) or seen[-1]  # noqa: E731
        object.__setattr__(module, "features", spy)
    try:
        yield seen
    finally:
        if has_features(module):
            object.__delattr__(module, "features")


# Functions (model, dtype) that make tasks of other libraries' modules; None for anything else.
FOREIGN: list[Callable[[Any, str], Task | None]] = []


def as_task(model: Any, dtype: str = "float32") -> Task:
    """Make a `Task` of a `Task`, a linen, NNX or Equinox module, or an (init, apply) pair.

    Raises:
      InputError: anything else.
    """
    if isinstance(model, Task):
        return model
    if isinstance(model, nn.Module):
        return LinenTask(model, dtype=dtype)
    for foreign in FOREIGN:
        if (task := foreign(model, dtype)) is not None:
            return task
    if isinstance(model, tuple) and len(model) == 2 and all(callable(f) for f in model):
        return FunctionTask(*model, dtype=dtype)
    allowed = (
        "a flax.linen, NNX or Equinox module, a Task or a pair of functions (init, apply), in "
        "`federate` also a name"
    )
    raise refused("model", model, allowed)
