"""Which leaves of a model belong together, and which of them are shared.

A model is a dict of collections: `"params"` (trainable) and, where a network has them, statistics
such as `"batch_stats"`. Its leaves fall into blocks: one block holds the weight and bias of one
layer, and a normalisation layer is a block of its own. A `LeafPlan` names the blocks and says
which leaves the server aggregates; all others are private and stay with their client. FedPer,
LG-FedAvg, FedBN, FedRep and FedBABU are plans, not engines.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fedjax_pfl.errors import require, unknown_name

Tree = Any
SHARED = ("all", "none", "head", "body")
NORM_POLICIES = ("shared", "local", "affine_shared")


@dataclass(frozen=True)
class LeafPlan:
    """The leaves of one client's model in flattening order; hashable, so it can be static.

    Attributes:
      paths: "collection/module/.../name" of every leaf.
      sizes: number of elements of every leaf.
      block_of: index into `blocks` of every leaf.
      blocks: names of the blocks, in order of first appearance.
      shared: whether the server aggregates the leaf.
      head: name of the block that classifies.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    block_of: tuple[int, ...]
    blocks: tuple[str, ...]
    shared: tuple[bool, ...]
    head: str

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def all_shared(self) -> bool:
        return all(self.shared)

    @property
    def num_parameters(self) -> int:
        """Trainable parameters of one model, statistics not counted."""
        return sum(
            n for path, n in zip(self.paths, self.sizes, strict=True) if path.startswith("params/")
        )

    def shared_block_sizes(self) -> np.ndarray:
        """int64 [num_blocks]: elements of each block that travel when the block is sent."""
        sizes = np.zeros(self.num_blocks, np.int64)
        for block, size, shared in zip(self.block_of, self.sizes, self.shared, strict=True):
            sizes[block] += size * shared
        return sizes

    def select(self, tree: Tree, keep: Callable[[int], bool]) -> Tree:
        """The tree with None in place of every leaf whose number `keep` refuses."""
        leaves, treedef = jax.tree.flatten(tree)
        return treedef.unflatten([x if keep(i) else None for i, x in enumerate(leaves)])

    def split(self, tree: Tree) -> tuple[Tree, Tree]:
        """(shared, private): two trees, each with None where the other has the leaf."""
        shared = self.select(tree, lambda i: self.shared[i])
        return shared, self.select(tree, lambda i: not self.shared[i])

    def uploaded(self, tree: Tree) -> Tree:
        """The trainable shared leaves: what a server can compare clients by."""
        return self.select(tree, lambda i: self.shared[i] and self.paths[i].startswith("params/"))

    def head_mask(self, tree: Tree) -> Tree:
        """A tree of Python booleans: True on the leaves of the classifier block."""
        leaves, treedef = jax.tree.flatten(tree)
        flags = [self.blocks[self.block_of[i]] == self.head for i in range(len(leaves))]
        return treedef.unflatten(flags)


def join(shared: Tree, private: Tree) -> Tree:
    """Puts the two halves of `LeafPlan.split` together again."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, shared, private, is_leaf=lambda x: x is None
    )


def path_name(path) -> str:
    """The "a/b/c" form of a key path of `jax.tree_util`."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path)


def leaf_plan(
    model: Tree,
    *,
    share: str | Callable[[str], bool] = "all",
    head: str | None = None,
    batch_norm: str = "affine_shared",
) -> LeafPlan:
    """Derives the plan of a model from its shapes.

    Args:
      model: one client's model or its `jax.eval_shape`.
      share: "all", "none", "head", "body" (all but the head), or a predicate on the leaf's path.
      head: the classifier's block, such as "head" or "layers/dense_2"; by default the block named
        "head" if there is one, else the last block of the parameters.
      batch_norm: "shared" averages affine parameters and running statistics, "local" neither,
        "affine_shared" only the affine parameters.

    Raises:
      InputError: unknown name of `share` or `batch_norm`, or no block named `head`.
    """
    if isinstance(share, str) and share not in SHARED:
        raise unknown_name("rule of shared leaves", share, SHARED)
    if batch_norm not in NORM_POLICIES:
        raise unknown_name("batch-norm policy", batch_norm, NORM_POLICIES)
    flat, _ = jax.tree_util.tree_flatten_with_path(model)
    paths = tuple(path_name(path) for path, _ in flat)
    require(bool(paths), "model", model, "a pytree with at least one array")

    def block_name(path: str) -> str:
        inner = path.split("/")[1:]
        return "/".join(inner[:-1]) or inner[-1]

    names = [block_name(path) for path in paths]
    blocks = tuple(dict.fromkeys(names))
    trainable = [n for n, p in zip(names, paths, strict=True) if p.startswith("params/")]
    if head is None:
        head = "head" if "head" in blocks else trainable[-1]
    elif head not in blocks:
        raise unknown_name("block for the head", head, blocks)
    normalised = {n for n, p in zip(names, paths, strict=True) if not p.startswith("params/")}

    def is_shared(path: str, name: str) -> bool:
        statistic = not path.startswith("params/")
        if name in normalised and (
            batch_norm == "local" or (batch_norm == "affine_shared" and statistic)
        ):
            return False
        if callable(share):
            return bool(share(path))
        return {"all": True, "none": False, "head": name == head, "body": name != head}[share]

    return LeafPlan(
        paths=paths,
        sizes=tuple(int(np.prod(leaf.shape)) for _, leaf in flat),
        block_of=tuple(blocks.index(n) for n in names),
        blocks=blocks,
        shared=tuple(is_shared(p, n) for p, n in zip(paths, names, strict=True)),
        head=head,
    )
