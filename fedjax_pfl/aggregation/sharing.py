"""Rules that select leaves of a model, for sharing or freezing."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.utils.errors import (
    InputError,
    require_name,
    require_whole,
    shown,
    unknown_name,
)

if TYPE_CHECKING:
    from fedjax_pfl.aggregation.leaf_plan import LeafPlan

SHARED = ("all", "none", "head", "body")


@dataclass(frozen=True)
class SharedLayers:
    """A rule that selects a number of layers, see `LeafPlan.layers`.

    A number above that of the network's layers selects all of them.

    Attributes:
      first, last: numbers of layers from the input and from the output.
      others: select all other layers instead.
    """

    first: int = 0
    last: int = 0
    others: bool = False

    def __post_init__(self) -> None:
        require_whole("SharedLayers.first", self.first, 0)
        require_whole("SharedLayers.last", self.last, 0)

    def __str__(self) -> str:
        ends = [
            f"the {end} {'layer' if count == 1 else f'{count} layers'}"
            for end, count in (("first", self.first), ("last", self.last))
            if count
        ]
        named = " and ".join(ends)
        if not named:
            return "all layers" if self.others else "no layer"
        return f"all but {named}" if self.others else named

    def blocks(self, layers: tuple[tuple[str, ...], ...]) -> frozenset[str]:
        """Return the names of the selected blocks."""
        count = len(layers)
        at = {k for k in range(count) if k < self.first or k >= count - self.last}
        return frozenset(b for k, layer in enumerate(layers) for b in layer
                         if (k in at) != self.others)  # fmt: skip


# A name of `SHARED` ("body" is all but the head), a count of layers, or a predicate on a leaf's
# path such as "params/conv_0/kernel".
Rule = str | SharedLayers | Callable[[str], bool]


def chosen(rule: Rule, plan: LeafPlan) -> tuple[bool, ...]:
    """Return whether a rule selects each leaf of a plan.

    Raises:
      InputError: unknown rule, or a predicate that fails or does not return a bool.
    """
    if isinstance(rule, SharedLayers):
        blocks = rule.blocks(plan.layers)
    elif callable(rule):
        return tuple(_selects(rule, path) for path in plan.paths)
    else:
        require_name("rule of shared leaves", rule, SHARED)
        blocks = {
            "all": set(plan.blocks),
            "none": set(),
            "head": plan.heads,
            "body": set(plan.blocks) - plan.heads,
        }[rule]
    return tuple(plan.blocks[block] in blocks for block in plan.block_of)


def selected_leaves(rule: Rule, plan: LeafPlan) -> tuple[bool, ...]:
    """Return whether a rule or patterns select each leaf of a plan.

    Patterns are separated by commas, such as "conv_*,fc", and match paths of blocks, modules or
    single leaves without the collection.

    Raises:
      InputError: see `chosen`, or a pattern matches nothing.
    """
    if not isinstance(rule, str) or rule in SHARED:
        return chosen(rule, plan)
    patterns = [pattern.strip() for pattern in rule.split(",")]
    inner = [path.partition("/")[2] or path for path in plan.paths]

    def names(pattern: str, path: str) -> bool:
        parts = path.split("/")
        above = ("/".join(parts[: k + 1]) for k in range(len(parts)))
        return any(fnmatch.fnmatchcase(module, pattern) for module in above)

    for pattern in patterns:
        if not any(names(pattern, path) for path in inner):
            raise unknown_name("pattern of layers", pattern, plan.blocks)
    return tuple(any(names(pattern, path) for pattern in patterns) for path in inner)


def _selects(rule: Callable[[str], bool], path: str) -> bool:
    try:
        selected = rule(path)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError(f"share must take the path of a leaf, {path!r}: {what}") from error
    if not isinstance(selected, bool | np.bool_):
        raise InputError(f"share must return True or False, got {shown(selected)} for {path!r}.")
    return bool(selected)


def describe_rule(plan: LeafPlan) -> str:
    """Describe the leaves that a plan's rule selects: "all layers", "the head", or block names."""
    known = {"all": "all layers", "none": "no layer", "head": "the head", "body": "the body"}
    flags = plan.chosen or chosen("all", plan)
    for name, words in known.items():
        if flags == chosen(name, plan):
            return words
    pairs = zip(plan.block_of, flags, strict=True)
    blocks = dict.fromkeys(plan.blocks[block] for block, on in sorted(pairs) if on)
    return ", ".join(blocks)
