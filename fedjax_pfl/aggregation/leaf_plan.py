"""Leaf plans: the blocks of a model, and which leaves are shared.

A model is a dict of collections: `"params"` (trainable) and possibly statistics such as
`"batch_stats"`. Its leaves form blocks: one block holds the weight and bias of one layer, and a
normalization layer is a separate block. A `LeafPlan` names the blocks and the leaves that the
server aggregates; all others are private to their client. FedPer, LG-FedAvg, FedBN, FedRep and
FedBABU differ from FedAvg by their plan. Rules of shared leaves are in `sharing`.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation import pairs, sharing
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError, require_name
from fedjax_pfl.utils.typing import Tree

NORM_POLICIES = ("shared", "local", "affine_shared")
DEFAULT_NORM_POLICY = "affine_shared"


@dataclass(frozen=True)
class LeafPlan:
    """The leaves of one client's model in flattening order; hashable, so it can be static.

    Attributes:
      paths: "collection/module/.../name" of every leaf.
      sizes: number of elements of every leaf.
      block_of: index into `blocks` of every leaf.
      blocks: names of the blocks, in order of first appearance.
      chosen: whether the rule of shared leaves selects the leaf; None for the algorithm's default.
      head: name of the classifier's block.
      batch_norm: policy of shared normalization layers; None for the algorithm's default.
      personal: whether the leaf belongs to a personal module, such as a second head, which is
        private under every rule.
      frozen: whether the leaf is frozen: clients keep its initial value and never send it.
      rule: the rule that made `chosen`, by which the plan can be extended to further modules.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    block_of: tuple[int, ...]
    blocks: tuple[str, ...]
    chosen: tuple[bool, ...] | None
    head: str
    batch_norm: str | None = None
    personal: tuple[bool, ...] = ()
    frozen: tuple[bool, ...] = ()
    rule: Rule | None = field(default=None, compare=False, repr=False)

    @cached_property
    def shared(self) -> tuple[bool, ...]:
        """Whether the server aggregates the leaf."""
        policy = self.batch_norm or DEFAULT_NORM_POLICY
        everything = (True,) * len(self.paths)

        def allowed(path: str) -> bool:
            if policy == "shared" or block_name(path) not in self.normalized:
                return True
            return policy == "affine_shared" and trainable(path)

        return tuple(
            chosen and allowed(path) and not (self._is(self.personal, i) or self.is_frozen(i))
            for i, (chosen, path) in enumerate(
                zip(self.chosen or everything, self.paths, strict=True)
            )
        )

    @cached_property
    def normalized(self) -> frozenset[str]:
        """Paths of modules with running statistics: the batch-norm layers."""
        return frozenset(block_name(path) for path in self.paths if not trainable(path))

    @cached_property
    def heads(self) -> frozenset[str]:
        """Names of the head and of personal modules."""
        own = (block for i, block in enumerate(self.block_of) if self._is(self.personal, i))
        return frozenset({self.head, *(self.blocks[block] for block in own)})

    @cached_property
    def layers(self) -> tuple[tuple[str, ...], ...]:
        """Names of the blocks by layer, in the network's order; the head is the last layer.

        The blocks of one module, such as a residual block, form one layer. A normalization layer
        belongs to the preceding layer.
        """
        names = [block for block in self.blocks if block not in self.heads]
        above = [name.split("/")[:-1] for name in names]
        alike = (len(set(modules)) == 1 for modules in zip(*above, strict=False))
        depth = sum(1 for _ in itertools.takewhile(bool, alike))  # the common prefix
        layers: dict[str, list[str]] = {}
        for name in names:
            module = name.split("/")[depth]
            if layers and module not in layers and name in self.normalized:
                module = next(reversed(layers))
            layers.setdefault(module, []).append(name)
        return (*map(tuple, layers.values()), (self.head,))

    @staticmethod
    def _is(flags: tuple[bool, ...], leaf: int) -> bool:
        return bool(flags) and flags[leaf]

    def is_frozen(self, leaf: int) -> bool:
        """Return whether a leaf, given by its index, is frozen in rounds."""
        return self._is(self.frozen, leaf)

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def all_shared(self) -> bool:
        return all(self.shared)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of one model, without statistics."""
        return sum(n for path, n in zip(self.paths, self.sizes, strict=True) if trainable(path))

    def shared_block_sizes(self) -> np.ndarray:
        """Return the numbers of shared elements of each block, int64 [num_blocks]."""
        sizes = np.zeros(self.num_blocks, np.int64)
        for block, size, shared in zip(self.block_of, self.sizes, self.shared, strict=True):
            sizes[block] += size * shared
        return sizes

    @property
    def shared_blocks(self) -> np.ndarray:
        """bool [num_blocks]: whether some leaf of the block is shared."""
        return self.shared_block_sizes() > 0

    def select(self, tree: Tree, keep: Callable[[int], bool]) -> Tree:
        """Keep the leaves for whose index `keep` is true, and replace the others with None."""
        leaves, treedef = jax.tree.flatten(tree)
        return treedef.unflatten([x if keep(i) else None for i, x in enumerate(leaves)])

    def split(self, tree: Tree) -> tuple[Tree, Tree]:
        """Return (shared, private): two trees, each with None where the other has the leaf."""
        shared = self.select(tree, lambda i: self.shared[i])
        return shared, self.select(tree, lambda i: not self.shared[i])

    def with_private(self, models: Tree, private: Tree) -> Tree:
        """Return models with private leaves from `private`, the second result of `split`."""
        return trees.join(self.split(models)[0], private)

    def is_trainable_shared(self, leaf: int) -> bool:
        """Return whether a leaf, given by its index, is trainable and shared."""
        return self.shared[leaf] and trainable(self.paths[leaf])

    def trainable_shared(self, tree: Tree) -> Tree:
        """Return the trainable shared leaves, by which a server can compare clients."""
        return self.select(tree, self.is_trainable_shared)

    def head_mask(self, tree: Tree) -> Tree:
        """Return a tree of Python booleans that are True on the leaves of heads.

        For a pair as one model, both models are masked; its weight is not part of a head. Neither
        are collections that the plan does not have, such as a memory beside the network's.
        """
        return self._mask(tree, [self.blocks[block] in self.heads for block in self.block_of])

    def frozen_mask(self, tree: Tree) -> Tree:
        """Return a tree of Python booleans that are True on frozen leaves."""
        return self._mask(tree, [self.is_frozen(i) for i in range(len(self.paths))])

    def _mask(self, tree: Tree, flags: Sequence[bool]) -> Tree:
        known = {path.partition("/")[0] for path in self.paths}
        others = {name: part for name, part in tree.items() if name not in known}
        if others:
            own = {name: part for name, part in tree.items() if name in known}
            return {**self._mask(own, flags), **jax.tree.map(lambda _: False, others)}
        if pairs.is_pair(tree):
            both = (jax.tree.structure(part).unflatten(flags) for part in pairs.parts(tree)[:2])
            return pairs.Pair(*both, alpha=False).model()
        return jax.tree.structure(tree).unflatten(flags)

    def with_defaults(self, share: Rule, batch_norm: str) -> "LeafPlan":
        """Return the plan with a rule of shared leaves and a batch-norm policy if it has none."""
        plan = self if self.chosen is not None else self.with_share(share)
        return replace(plan, batch_norm=plan.batch_norm or batch_norm)

    def with_share(self, rule: Rule) -> "LeafPlan":
        """Return the plan with another rule of shared leaves."""
        return replace(self, chosen=sharing.chosen(rule, self), rule=rule)

    def with_frozen(self, rule: Rule) -> "LeafPlan":
        """Return the plan with the leaves frozen that a rule selects.

        Raises:
          InputError: unknown rule, or it leaves nothing to train.
        """
        selected = sharing.chosen(rule, self)
        frozen = tuple(on or self.is_frozen(i) for i, on in enumerate(selected))
        if all(on or not trainable(path) for on, path in zip(frozen, self.paths, strict=True)):
            raise InputError(f"{rule} can't be frozen: nothing of the model would be trained.")
        return replace(self, frozen=frozen)

    def leaf_groups(self, by: str) -> tuple[int, ...]:
        """Return the group of every leaf: one per "tensor", or the groups of `grouped`."""
        if by == "tensor":
            return tuple(range(len(self.paths)))
        return self.grouped(by).block_of

    def grouped(self, by: str | Callable[[str], str]) -> "LeafPlan":
        """Return the plan with coarser blocks, for mixing matrices with one weight per group.

        Args:
          by: "blocks" (unchanged), "stages" (two blocks, "body" and "head"), "model" (one block),
            or a function from the name of a block to the name of its group.

        Raises:
          InputError: unknown name.
        """
        rules = {
            "blocks": lambda block: block,
            "stages": lambda block: "head" if block in self.heads else "body",
            "model": lambda block: "model",
        }
        if not callable(by):
            require_name("grouping of blocks", by, rules)
        name = by if callable(by) else rules[by]
        names = [name(block) for block in self.blocks]
        groups = tuple(dict.fromkeys(names))
        return replace(
            self,
            block_of=tuple(groups.index(names[block]) for block in self.block_of),
            blocks=groups,
            head=name(self.head),
        )

    def groups_of_blocks(self, coarser: "LeafPlan") -> np.ndarray:
        """Return the group in `coarser`, a grouping of this plan, of each block: int [B]."""
        group = dict(zip(self.block_of, coarser.block_of, strict=True))
        return np.array([group[block] for block in range(self.num_blocks)])

    def compared_parts(self, by: str, *models: Tree) -> dict[int, tuple[Tree, ...]]:
        """Return the trainable shared leaves by group, by which a server can compare clients.

        Args:
          by: see `leaf_groups`.
          *models: stacks, updates, or other trees with the leaves of a model.

        Returns:
          For each group with trainable shared leaves, ascending: the models with None in place of
          all other leaves.
        """
        groups = self.leaf_groups(by)
        seen = sorted({group for i, group in enumerate(groups) if self.is_trainable_shared(i)})

        def part(model, group):
            return self.select(model, lambda i: groups[i] == group and self.is_trainable_shared(i))

        return {group: tuple(part(model, group) for model in models) for group in seen}

    def top_shared_blocks(self, scores: jax.Array, count: jax.Array | int) -> jax.Array:
        """Select the `count` shared blocks with the largest scores per row, bool [k, num_blocks].

        Ties go to the earlier block.

        Args:
          scores: [k, num_blocks]; scores of private blocks are ignored.
          count: may be traced.
        """
        order = jnp.argsort(jnp.where(self.shared_blocks, -scores, jnp.inf), axis=1, stable=True)
        rank = jnp.argsort(order, axis=1, stable=True)
        return (rank < count) & self.shared_blocks


def trainable(path: str) -> bool:
    """Return whether the leaf of a path is a parameter rather than a statistic."""
    return path.partition("/")[0] == "params"


def block_name(path: str) -> str:
    """Return the name of the block of a leaf, given its path."""
    collection, *inner = path.split("/")
    return "/".join(inner[:-1]) or (inner[-1] if inner else collection)
