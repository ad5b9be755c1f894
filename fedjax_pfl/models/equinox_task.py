"""Equinox modules as tasks: arrays, state and keys are separated."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from fedjax_pfl.models import adapter_layers
from fedjax_pfl.models.task import (
    EVALUATION,
    FOREIGN,
    Mode,
    Outputs,
    Task,
    has_features,
    passed,
    watched_features,
)
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

COLLECTION = "state"
SWITCH = "make it a field 'inference', which is true in evaluation"
AXIS = "batch"  # name of the samples' axis, unless a layer names another


class Made:
    """An existing module as a function of a key; its own values are the initial ones.

    Attributes:
      module, state: the module, and what its `StateIndex`es hold.
    """

    def __init__(self, module: Any, state: Any = None):
        eqx = _equinox()

        made = eqx.nn.make_with_state(lambda: module)() if state is None else (module, state)
        self.module, self.state = made

    def __call__(self, key: Key) -> tuple[Any, Any]:
        return self.module, self.state


@dataclass(frozen=True)
class EquinoxTask(Task):
    """An Equinox module, made by a function of a key: `make(key) -> module`, or (module, state).

    The module sees one sample at a time, `module(x)`, and gets `key` and `state` if its `__call__`
    has these parameters; the batch is the axis that its `BatchNorm` layers name. Parameters are all
    floating arrays; others are constant. Statistics are the values of its `StateIndex`es; integers
    and booleans among them are stored as floats, so that they can be averaged. For algorithms that
    use features or a second head, it has a method `features`, with the arguments and results of
    `__call__`, and a layer `head`, which `__call__` applies to them.
    """

    make: Callable[[Any], Any]

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        module, state = _make_module(self.make, key)
        return {"params": _nested(_parameters(module))} | self._statistics(module, state, True)

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        module, state = self._merged(model, mode[0])
        logits, features, state = _called(module, "__call__", state, inputs, *mode)
        return Outputs(logits, self._statistics(module, state, mode[0]), features)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        module, state = self._merged(model, mode[0])
        if not has_features(module):
            raise self.no_head()
        features, _, state = _called(module, "features", state, inputs, *mode)
        return features, self._statistics(module, state, mode[0])

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        module, _ = self._merged(model, EVALUATION[0])
        if not hasattr(module, "head"):
            raise self.no_head()
        return jax.vmap(module.head)(features)

    def _merged(self, model: Tree, train: bool) -> tuple[Any, Any]:
        """Return the module and its state with a model's values."""
        eqx = _equinox()

        module, state = _template(self.make)
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)
        values = iter([_at(model["params"], name) for name, _ in _parameters(module)])
        module = jax.tree.map(lambda x: next(values) if _floating(x) else x, module)
        held = iter([_at(model[COLLECTION], name) for name, _ in _state_values(module, state)])
        for _, index in _parts(module, eqx.nn.StateIndex):
            like = state.get(index)
            state = state.set(index, jax.tree.map(lambda x: _as(next(held), x.dtype), like))
        module = eqx.nn.inference_mode(module, not train)
        return adapter_layers.in_equinox(module, model["params"]), state

    def sees_padding(self) -> bool:
        return False

    def abstract(self) -> Any:
        """Return the module with shapes for its values."""
        return _template(self.make)[0]

    def _statistics(self, module: Any, state: Any, train: bool) -> Tree:
        """Return the collection of statistics after a training pass, if any."""
        values = [(name, value.astype(self.dtype)) for name, value in _state_values(module, state)]
        return {COLLECTION: _nested(values)} if train and values else {}


def equinox_task(model: Any, dtype: str) -> EquinoxTask | None:
    """Return the task of an Equinox module, or of a pair (module, state); None for others."""
    if "equinox" not in sys.modules:  # no module of it can exist
        return None
    eqx = _equinox()

    if isinstance(model, eqx.Module):
        return EquinoxTask(Made(model), dtype=dtype)
    pair = isinstance(model, tuple) and len(model) == 2 and isinstance(model[1], eqx.nn.State)
    return EquinoxTask(Made(*model), dtype=dtype) if pair else None


FOREIGN.append(equinox_task)


def _equinox() -> Any:
    """Import the optional package."""
    return importlib.import_module("equinox")


def _make_module(make: Callable[[Any], Any], key: Key) -> tuple[Any, Any]:
    """Return a module and its state, without weakly typed values."""
    eqx = _equinox()

    made = make(key)
    module, state = made if isinstance(made, tuple) else eqx.nn.make_with_state(lambda: made)()
    return module, jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)


@functools.lru_cache(maxsize=32)
def _template(make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the module and its state: constant arrays with values, all others as shapes."""
    eqx = _equinox()

    module, state = eqx.filter_eval_shape(_make_module, make, jax.random.key(0))
    if any(hasattr(x, "dtype") and not _floating(x) for x in jax.tree.leaves(module)):
        with jax.ensure_compile_time_eval():
            module, _ = _make_module(make, jax.random.key(0))
    return module, state


def _called(
    module: Any, method: str, state: Any, inputs: jax.Array, train: bool, rng: Any, valid: Any
) -> tuple[jax.Array, jax.Array | None, Any]:
    """Return the results [B, ...], the requested features or None, and the state after."""
    known = inspect.signature(getattr(type(module), method)).parameters
    drawn = rng if "key" in known and train else None
    keys = None if drawn is None else jax.random.split(drawn, len(inputs))
    takes_state = "state" in known

    def one(x, key):
        options = passed(getattr(type(module), method), SWITCH, key=key, state=state)
        with watched_features(module) as seen:
            out = getattr(module, method)(x, **options)
        asked = seen[-1][0] if seen and isinstance(seen[-1], tuple) else (*seen, None)[0]
        return (*out, asked) if takes_state else (out, None, asked)

    axes = (0, None if keys is None else 0)
    called = jax.vmap(one, axes, (0, None, 0), axis_name=_axis(module))
    out, after, asked = called(inputs, keys)
    return out, asked, after if takes_state else state


def _axis(module: Any) -> Any:
    """Return the name of the batch axis in layers that reduce over it."""
    eqx = _equinox()

    names = {layer.axis_name for _, layer in _parts(module, eqx.nn.BatchNorm)}
    if len(names) > 1:
        several = ", ".join(sorted(map(repr, names)))
        raise InputError(
            f"The Equinox module's BatchNorm layers name several axes, {several}: give them "
            "one axis_name, or write a pfl.Task with init and apply."
        )
    return next(iter(names), AXIS)


def _state_values(module: Any, state: Any) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of a state, in the order of the module's `StateIndex`es.

    A path is the layer's path and one name, as in `bn/batch_state_index_0`, so that statistics are
    beside their layer's parameters.
    """
    for path, index in _parts(module, _equinox().nn.StateIndex):
        for number, value in enumerate(jax.tree.leaves(state.get(index))):
            yield f"{path}_{number}", value


def _parts(module: Any, kind: type) -> list[tuple[str, Any]]:
    """Return (path, part) of the parts of a module that are of a class."""
    parts = trees.by_path(module, lambda x: isinstance(x, kind))
    return [(path, part) for path, part in parts.items() if isinstance(part, kind)]


def _parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """Return (path, array) of the floating arrays of a module."""
    return ((path, leaf) for path, leaf in trees.by_path(module).items() if _floating(leaf))


def _floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _as(value: jax.Array, dtype: Any) -> jax.Array:
    """Return a value that was stored as a float in its own type."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return value > 0.5
    return jnp.round(value).astype(dtype) if jnp.issubdtype(dtype, jnp.integer) else value


def _nested(values: Any) -> Tree:
    return traverse_util.unflatten_dict(dict(values), sep="/")


def _at(tree: Tree, path: str) -> Any:
    return trees.at(tree, path.split("/"))
