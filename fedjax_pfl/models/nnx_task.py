"""Flax NNX modules as tasks: parameters, batch statistics and random streams are separated."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from fedjax_pfl.models import adapter_layers, convolutions
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
from fedjax_pfl.utils.conversions import accepted
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

COLLECTION = "batch_stats"


class Made:
    """An existing module as a function of random streams; its own values are the initial ones.

    Attributes:
      parts: its graph and values.
      order: paths of its variables in the order of `_order`, which a copy doesn't have.
    """

    def __init__(self, module: Any):
        from flax import nnx  # slow import: only where it is used

        self.parts, self.order = nnx.split(nnx.clone(module)), _order(module)

    def __call__(self, *, rngs: Any) -> Any:
        from flax import nnx

        return nnx.merge(*self.parts)


@dataclass(frozen=True)
class NnxTask(Task):
    """An NNX module, made by a function of its random streams, `make(rngs=nnx.Rngs) -> module`.

    Parameters are `nnx.Param`, statistics `nnx.BatchStat`. In a training step every random stream
    of the module gets its own key, and the module is in training mode (`module.train()`), otherwise
    in evaluation mode. If its `__call__` has parameters `train` or `valid`, they are passed. For
    algorithms that use features or a second head, it has a method `features(inputs)` and a layer
    `head`, which `__call__` applies to them.
    """

    make: Callable[..., Any]

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        from flax import nnx

        made = self.make(rngs=nnx.Rngs(key))
        return _model(made, self.make.order if isinstance(self.make, Made) else _order(made))

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        module, (train, _, valid) = self._merged(model, *mode), mode
        options = passed(type(module).__call__, train=train, valid=valid)
        with watched_features(module) as seen:
            logits = module(inputs, **options)
        return Outputs(logits, _statistics(module, train), seen[-1] if seen else None)

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        module, (train, _, valid) = self._merged(model, *mode), mode
        if not has_features(module):
            raise self.no_head()
        options = passed(type(module).features, train=train, valid=valid)
        return module.features(inputs, **options), _statistics(module, train)

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        module = self._merged(model, *EVALUATION)
        if not hasattr(module, "head"):
            raise self.no_head()
        return module.head(features)

    def _merged(self, model: Tree, train: bool, rng: Key | None, valid: jax.Array | None) -> Any:
        """Return the module with a model's values, in the mode of a minibatch."""
        from flax import nnx

        graph, state = _shapes(self.make)
        leaves, streams = [], 0
        for path, variable in nnx.to_flat_state(state):
            if isinstance(variable, nnx.RngState):
                drawn = jax.random.key(0) if rng is None else jax.random.fold_in(rng, streams)
                count = jax.numpy.zeros(variable.shape, variable.dtype)
                value = drawn if isinstance(variable, nnx.RngKey) else count
                streams += 1
            else:
                name = "params" if isinstance(variable, nnx.Param) else COLLECTION
                value = trees.at(model[name], [str(part) for part in path])
            leaves.append((path, variable.replace(value)))
        module = nnx.merge(graph, nnx.from_flat_state(leaves))
        module.train() if train else module.eval()
        convolutions.in_nnx(module)
        adapter_layers.in_nnx(module, model["params"])
        return module

    def sees_padding(self) -> bool:
        return bool(accepted(type(self.abstract()).__call__, valid=None))

    def abstract(self) -> Any:
        """Return the module with shapes for its values."""
        from flax import nnx

        return nnx.merge(*_shapes(self.make))


def nnx_task(model: Any, dtype: str) -> NnxTask | None:
    """Return the task of an NNX module, or of a class or partial that creates one.

    None for anything else.
    """
    made = model.func if isinstance(model, functools.partial) else model
    kind = made if isinstance(made, type) else type(made)
    if not any(base.__module__.startswith("flax.nnx") for base in kind.__mro__):
        return None
    from flax import nnx

    if not issubclass(kind, nnx.Module):
        return None
    return NnxTask(Made(model) if isinstance(model, nnx.Module) else model, dtype=dtype)


FOREIGN.append(nnx_task)


@functools.lru_cache(maxsize=32)
def _shapes(make: Callable[..., Any]) -> tuple[Any, Any]:
    """Return (graph, shapes of all variables) of the module."""
    from flax import nnx

    return nnx.split(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))))


def _statistics(module: Any, train: bool) -> Tree:
    """Return the collection of statistics after a training pass, if any."""
    if not train:
        return {}
    return {k: tree for k, tree in _model(module, _order(module)).items() if k != "params"}


def _model(module: Any, order: Sequence[tuple[Any, ...]]) -> Tree:
    """Return a module's values in dicts by collection and path; `order` has all paths."""
    from flax import nnx

    tree: dict[str, Any] = {"params": {}}
    variables = dict(nnx.to_flat_state(nnx.state(module)))
    for path in order:
        variable = variables[path]
        if isinstance(variable, nnx.RngState):
            continue
        if not isinstance(variable, nnx.Param | nnx.BatchStat):
            name = "/".join(map(str, path))
            raise InputError(
                f"The NNX module keeps {name!r} as {type(variable).__name__}: what clients train "
                "is nnx.Param, their statistics are nnx.BatchStat. Write another kind as a "
                "pfl.Task with init and apply, see docs/your_own.md."
            )
        part = tree.setdefault("params" if isinstance(variable, nnx.Param) else COLLECTION, {})
        for name in map(str, path[:-1]):
            part = part.setdefault(name, {})
        part[str(path[-1])] = variable.get_value()
    return tree


def _order(module: Any) -> list[tuple[Any, ...]]:
    """Return the paths of a module's variables, in the order of its attributes."""
    from flax import nnx

    paths = [path for path, _ in nnx.to_flat_state(nnx.state(module))]
    return sorted(paths, key=lambda path: _place(module, path))


def _place(module: Any, path: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the position of a path's parts among the surrounding attributes."""
    place: list[int] = []
    for part in path:
        if isinstance(module, Mapping):
            known = {str(name): value for name, value in module.items()}
        elif isinstance(module, list | tuple):
            known = {str(i): value for i, value in enumerate(module)}
        else:
            known = getattr(module, "__dict__", {})
        place.append([*known, str(part)].index(str(part)))
        module = known.get(str(part))
    return tuple(place)
