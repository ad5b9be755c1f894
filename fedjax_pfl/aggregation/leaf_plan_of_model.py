"""Derivation of leaf plans from the shapes of models."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import NORM_POLICIES, LeafPlan, block_name, trainable
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import require, require_name
from fedjax_pfl.utils.typing import Tree


def creation_order(model: Tree) -> list[str]:
    """Return the blocks of a model in the order in which the network created its parameters.

    Dictionaries preserve that order until they are flattened, so pass the result of `init`.
    """
    paths = paths_in_order(model.get("params", model), ("params",))
    return list(dict.fromkeys(block_name(path) for path in paths))


def paths_in_order(tree: Tree, above: tuple[str, ...] = ()) -> list[str]:
    """Return the paths of the leaves in the order of dictionaries, which flattening would sort.

    Args:
      tree: nested dictionaries of trees.
      above: prefix of the paths.
    """
    if isinstance(tree, Mapping):
        parts = (paths_in_order(part, (*above, str(name))) for name, part in tree.items())
        return [path for paths in parts for path in paths]
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return ["/".join((*above, trees.path_name(rest))).rstrip("/") for rest, _ in flat]


def leaf_plan(
    model: Tree,
    *,
    share: Rule | None = None,
    head: str | None = None,
    batch_norm: str | None = None,
    order: Sequence[str] = (),
) -> LeafPlan:
    """Derive the plan of a model from its shapes.

    Args:
      model: one client's model or its `jax.eval_shape`.
      share: the rule of shared leaves, see `sharing`; None for the algorithm's default.
      head: the classifier's block, such as "head" or "layers/dense_2"; by default the block named
        "head" if it exists, else the last block of the parameters in `order`.
      batch_norm: "shared" averages affine parameters and running statistics, "local" neither,
        "affine_shared" only the affine parameters; None for the algorithm's default.
      order: names of blocks in the network's order (`creation_order`); by default the alphabetical
        order of flattening.

    Raises:
      InputError: unknown `share` or `batch_norm`, or no block named `head`.
    """
    if batch_norm is not None:
        require_name("batch-norm policy", batch_norm, NORM_POLICIES)
    flat, _ = jax.tree_util.tree_flatten_with_path(model)
    paths = tuple(trees.path_name(path) for path, _ in flat)
    require(bool(paths), "model", model, "a pytree with at least one array")

    names = [block_name(path) for path in paths]
    blocks = tuple(dict.fromkeys([*(name for name in order if name in names), *names]))
    learned = {n for n, p in zip(names, paths, strict=True) if trainable(p)}
    require(bool(learned), "model", list(paths), "one with trainable leaves")
    if head is None:
        head = "head" if "head" in blocks else [b for b in blocks if b in learned][-1]
    else:
        require_name("block for the head", head, blocks)

    plan = LeafPlan(
        paths=paths,
        sizes=tuple(int(np.prod(leaf.shape)) for _, leaf in flat),
        block_of=tuple(blocks.index(n) for n in names),
        blocks=blocks,
        chosen=None,
        head=head,
        batch_norm=batch_norm,
    )
    return plan if share is None else plan.with_share(share)


def extended(plan: LeafPlan, model: Tree, personal: Sequence[str] = ()) -> LeafPlan:
    """Extend a plan to a model (or its shapes) with further modules.

    The rule of shared leaves applies to the new modules, too.

    Args:
      plan: the plan of the model without them.
      model: the model.
      personal: names of modules that are private under every rule.

    Raises:
      InputError: there is no module of such a name.
    """
    new = leaf_plan(model, head=plan.head, batch_norm=plan.batch_norm, order=plan.blocks)
    before = {path: i for i, path in enumerate(plan.paths)}
    for name in personal:
        require_name("personal module", name, {path.split("/")[1]: 0 for path in new.paths})

    def flags(old: tuple[bool, ...], added: Sequence[str] = ()) -> tuple[bool, ...]:
        known = {path for path, i in before.items() if old and old[i]}
        on = tuple(path in known or path.split("/")[1] in added for path in new.paths)
        return on if any(on) else ()

    new = replace(new, personal=flags(plan.personal, personal), frozen=flags(plan.frozen))
    return new if plan.rule is None else new.with_share(plan.rule)
