"""Pretrained networks with a frozen backbone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.models.base_types import converted_twice, held, restored
from fedjax_pfl.models.task import Mode, Outputs, Task
from fedjax_pfl.models.wrapped_task import WrappedTask
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

Values = Mapping[str, Any]  # arrays by the path of a leaf, such as "params/conv_0/kernel"


@dataclass(frozen=True)
class FrozenBackbone(WrappedTask):
    """A pretrained network whose client models omit the frozen leaves.

    The frozen leaves are one tree for all clients. What is `bound` to a task isn't part of its
    identity: programs get it as an argument.

    Attributes:
      network: the task of the complete network.
      frozen: paths of the frozen leaves.
      base_dtype: type in which they are held, see `base_types`; None for that of models.
      values: initial values by path, of frozen leaves too.
      backbone: the frozen leaves, in dicts as the network has them.
    """

    frozen: tuple[str, ...] = ()
    base_dtype: str | None = None
    values: Values = field(default_factory=dict, compare=False, repr=False)
    backbone: Tree = field(default=None, compare=False, repr=False)

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        values = self.values
        if self.base_dtype is not None:  # the frozen leaves' values are not in the model's type
            values = {path: values[path] for path in values if path not in self.frozen}
        return without(_replaced(self.network.init(key, inputs), values), self.frozen)

    def frozen_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        if not self.frozen:
            return {}
        model = self.network.initial_model(key, inputs)
        base_dtype = self.base_dtype
        if base_dtype is None:
            return only(_replaced(model, self.values), self.frozen)

        def leaf(path, own):
            trained = path.startswith("params/")  # statistics stay as they are
            known = self.values.get(path)  # in the type in which it is held
            return known if known is not None else held(own, base_dtype) if trained else own

        return _mapped(leaf, only(model, self.frozen))

    def bound(self, values: Values, backbone: Tree) -> "FrozenBackbone":
        return replace(self, values=values, backbone=backbone)

    def plain(self, model: Tree) -> Tree:
        return self.network.plain(joined(model, self.backbone) if self.frozen else model)

    def own(self, model: Tree) -> Tree:
        """Return the network's model: a client's with the frozen leaves."""
        if not self.frozen:
            return model
        backbone = self.backbone
        if self.base_dtype is not None:
            params = restored(backbone.get("params", {}), self.compute_dtype or self.dtype)
            backbone = {**backbone, "params": params}
        elif self.compute_dtype is not None:  # the model's parameters have been cast
            low = lambda x: x.astype(self.compute_dtype) if _floating(x) else x  # noqa: E731
            backbone = {**backbone, "params": jax.tree.map(low, backbone.get("params", {}))}
        return joined(model, backbone)

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        def applied(backbone, model, inputs):
            task = replace(self, backbone=backbone)
            outputs: Any = self.network.apply(task.own(model), inputs, *mode)
            return Outputs(*outputs)

        if self.base_dtype is not None:
            applied = converted_twice(applied)
        out: Any = applied(self.backbone, model, inputs)
        return out._replace(statistics=without(out.statistics, self.frozen))

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        features, statistics = super().embed(model, inputs, *mode)
        return features, without(statistics, self.frozen)


def values_held(task: Task, values: Values) -> dict[str, Any]:
    """Return given values, those of frozen leaves in the type in which a task holds them."""
    if not isinstance(task, FrozenBackbone) or task.base_dtype is None:
        return dict(values)
    frozen = {path for path in task.frozen if path.startswith("params/")}
    return {
        path: held(value, task.base_dtype) if path in frozen else value
        for path, value in values.items()
    }


def without(tree: Tree, paths: tuple[str, ...]) -> Tree:
    """Return a tree of nested dicts without the leaves of those paths."""
    return _filtered(tree, (), lambda path: path not in paths)


def only(tree: Tree, paths: tuple[str, ...]) -> Tree:
    """Return a tree of nested dicts with only the leaves of those paths."""
    return _filtered(tree, (), lambda path: path in paths)


def joined(one: Tree, other: Tree) -> Tree:
    """Join two trees of nested dicts without common leaves."""
    both = dict(one)
    for name, part in other.items():
        both[name] = joined(one[name], part) if name in one else part
    return both


def overlaid(tree: Tree, changed: Tree, at: str = "") -> Tree:
    """Return a tree of nested dicts with some of its leaves replaced.

    Raises:
      TypeError: the tree has no such leaf, or its shape or type differs.
    """
    if not isinstance(changed, Mapping):
        same = [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in (tree, changed)]
        if same[0] != same[1]:
            raise TypeError(f"{at} must be like the frozen leaf, {same[0]}, got {same[1]}.")
        return changed
    both = dict(tree) if isinstance(tree, Mapping) else {}
    for name, part in changed.items():
        if name not in both:
            raise TypeError(f"{at}/{name} is not a frozen leaf: it must be one of the backbone's.")
        both[name] = overlaid(both[name], part, f"{at}/{name}")
    return both


def _filtered(tree: Tree, at: tuple[str, ...], keep: Callable[[str], bool]) -> Tree:
    """Filter nested dicts, keeping their order, which is that of the network's layers."""
    filtered = {}
    for name, part in tree.items():
        path = (*at, str(name))
        if isinstance(part, Mapping):
            inside = _filtered(part, path, keep)
            if inside or not part:
                filtered[name] = inside
            continue
        flat, _ = jax.tree_util.tree_flatten_with_path(part)
        chosen = {keep("/".join((*path, trees.path_name(rest))).rstrip("/")) for rest, _ in flat}
        if len(chosen) > 1:
            raise InputError(f"Leaves of {'/'.join(path)}, which isn't a dict, can't be separated.")
        if True in chosen:
            filtered[name] = part
    return filtered


def _replaced(tree: Tree, values: Values) -> Tree:
    """Return the tree with the values of some paths replaced."""

    def leaf(path, own):
        return jnp.asarray(values[path], own.dtype) if path in values else own

    return _mapped(leaf, tree) if values else tree


def _mapped(leaf: Callable[[str, Any], Any], tree: Tree, at: tuple[str, ...] = ()) -> Tree:
    """Return `leaf(path, own)` for all leaves of nested dicts, keeping their order."""
    if isinstance(tree, Mapping):
        return {name: _mapped(leaf, part, (*at, str(name))) for name, part in tree.items()}

    def inner(rest, own):
        return leaf("/".join((*at, trees.path_name(rest))).rstrip("/"), own)

    return jax.tree_util.tree_map_with_path(inner, tree)


def _floating(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
