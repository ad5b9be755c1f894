"""Networks that begin with given values, and of which some leaves are fixed: a backbone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.models.task import Mode, Outputs, Task
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.typing import Key, Tree

Values = Mapping[str, Any]  # arrays by the path of a leaf, such as "params/conv_0/kernel"


@dataclass(frozen=True)
class FrozenBackbone(Task):
    """A network whose models begin with given values, and hold no fixed leaves.

    Those are one tree for all clients, beside the models. What is `bound` to a task is no part of
    its identity: programs get it as an argument.

    Attributes:
      network: the task of the whole network.
      fixed: paths of the fixed leaves.
      values: given values by path, of fixed leaves too.
      backbone: the fixed leaves, in dicts as the network has them.
    """

    network: Task
    fixed: tuple[str, ...] = ()
    values: Values = field(default_factory=dict, compare=False, repr=False)
    backbone: Tree = field(default=None, compare=False, repr=False)

    def init(self, key: Key, inputs: jax.Array) -> Tree:
        return without(self._whole(key, inputs), self.fixed)

    def fixed_leaves(self, key: Key, inputs: jax.Array) -> Tree:
        if not self.fixed:
            return {}
        whole = self.network.initial_model(key, inputs)
        return only(_replaced(whole, self.values), self.fixed)

    def _whole(self, key, inputs):
        return _replaced(self.network.init(key, inputs), self.values)

    def bound(self, values: Values, backbone: Tree) -> "FrozenBackbone":
        return replace(self, values=values, backbone=backbone)

    def whole(self, model: Tree) -> Tree:
        """The network's model: a client's with the fixed leaves."""
        if not self.fixed:
            return model
        backbone = self.backbone
        if self.compute_dtype is not None:  # the model's parameters have been cast
            low = lambda x: x.astype(self.compute_dtype) if _floating(x) else x  # noqa: E731
            backbone = {**backbone, "params": jax.tree.map(low, backbone.get("params", {}))}
        return joined(model, backbone)

    def apply(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> Outputs:
        found: Any = self.network.apply(self.whole(model), inputs, *mode)
        out = Outputs(*found)
        return out._replace(statistics=without(out.statistics, self.fixed))

    def embed(self, model: Tree, inputs: jax.Array, *mode: *Mode) -> tuple[jax.Array, Tree]:
        features, statistics = self.network.embed(self.whole(model), inputs, *mode)
        return features, without(statistics, self.fixed)

    def classify(self, model: Tree, features: jax.Array) -> jax.Array:
        return self.network.classify(self.whole(model), features)

    def losses(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        return self.network.losses(logits, labels)


def with_backbone(task: Task, fixed: tuple[str, ...] = ()) -> FrozenBackbone:
    """`FrozenBackbone` of a task, with all that a task has."""
    same = {one.name: getattr(task, one.name) for one in fields(Task)}
    return FrozenBackbone(task, fixed, **same)


def without(tree: Tree, paths: tuple[str, ...]) -> Tree:
    """A tree of nested dicts without the leaves of those paths."""
    return _kept(tree, (), lambda path: path not in paths)


def only(tree: Tree, paths: tuple[str, ...]) -> Tree:
    """A tree of nested dicts with the leaves of those paths alone."""
    return _kept(tree, (), lambda path: path in paths)


def joined(one: Tree, other: Tree) -> Tree:
    """The leaves of two trees of nested dicts that have none in common."""
    both = dict(one)
    for name, part in other.items():
        both[name] = joined(one[name], part) if name in one else part
    return both


def _kept(tree: Tree, at: tuple[str, ...], keep: Callable[[str], bool]) -> Tree:
    """Keeps the order of dicts, which tells in which order a network made its layers."""
    kept = {}
    for name, part in tree.items():
        path = (*at, str(name))
        if isinstance(part, Mapping):
            inside = _kept(part, path, keep)
            if inside or not part:
                kept[name] = inside
            continue
        flat, _ = jax.tree_util.tree_flatten_with_path(part)
        said = {keep("/".join((*path, trees.path_name(rest))).rstrip("/")) for rest, _ in flat}
        if len(said) > 1:
            raise InputError(f"Leaves of {'/'.join(path)}, which is no dict, can't be told apart.")
        if True in said:
            kept[name] = part
    return kept


def _replaced(tree: Tree, values: Values, at: tuple[str, ...] = ()) -> Tree:
    """The tree with given values in place of its own."""
    if not values:
        return tree
    if isinstance(tree, Mapping):
        return {name: _replaced(part, values, (*at, str(name))) for name, part in tree.items()}

    def leaf(rest, own):
        path = "/".join((*at, trees.path_name(rest))).rstrip("/")
        return jnp.asarray(values[path], own.dtype) if path in values else own

    return jax.tree_util.tree_map_with_path(leaf, tree)


def _floating(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
