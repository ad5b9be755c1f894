"""Rules that select leaves of a model, for sharing or freezing."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.utils.errors import InputError, require_name, require_whole, shown, unknown_name

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


# A name of `SHARED` ("body" is all but the head), patterns such as "head,*lora_a", a count of
# layers, or a predicate on a leaf's path such as "params/conv_0/kernel".
Rule = str | SharedLayers | Callable[[str], bool]


def chosen(rule: Rule, plan: LeafPlan) -> tuple[bool, ...]:
    """Return whether a rule selects each leaf of a plan.

    Patterns are separated by commas, such as "conv_*,fc", and match paths of blocks, modules or
    single leaves without the collection. The names "all", "none", "head" and "body" may be among
    them.

    Raises:
      InputError: unknown rule, a pattern that matches nothing, or a predicate that fails or does
        not return a bool.
    """
    if callable(rule):
        return tuple(_selects(rule, path) for path in plan.paths)
    if isinstance(rule, SharedLayers):
        return _of_blocks(rule.blocks(plan.layers), plan)
    if not isinstance(rule, str):
        require_name("rule of shared leaves", rule, SHARED)
    words = [word.strip() for word in rule.split(",")]
    return tuple(map(any, zip(*(_named(word, plan) for word in words), strict=True)))


def _named(word: str, plan: LeafPlan) -> tuple[bool, ...]:
    """Return which leaves one name or pattern selects."""
    blocks = {
        "all": frozenset(plan.blocks),
        "none": frozenset(),
        "head": plan.heads,
        "body": frozenset(plan.blocks) - plan.heads,
    }
    if word in SHARED:
        return _of_blocks(blocks[word], plan)
    inner = (module_paths(path.partition("/")[2] or path) for path in plan.paths)
    selected = tuple(any(fnmatch.fnmatchcase(at, word) for at in paths) for paths in inner)
    if not any(selected):
        raise unknown_name("pattern of layers", word, {*SHARED, *plan.blocks})
    return selected


def module_paths(path: str) -> list[str]:
    """Return a leaf's path and those of the modules that contain it: "fc", "fc/bias"."""
    parts = path.split("/")
    return ["/".join(parts[: k + 1]) for k in range(len(parts))]


def _of_blocks(blocks: frozenset[str], plan: LeafPlan) -> tuple[bool, ...]:
    return tuple(plan.blocks[block] in blocks for block in plan.block_of)


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
    if isinstance(plan.rule, str) and plan.rule not in SHARED:
        return plan.rule
    known = {"all": "all layers", "none": "no layer", "head": "the head", "body": "the body"}
    flags = plan.chosen or chosen("all", plan)
    for name, words in known.items():
        if flags == chosen(name, plan):
            return words
    pairs = zip(plan.block_of, flags, strict=True)
    blocks = dict.fromkeys(plan.blocks[block] for block, on in sorted(pairs) if on)
    return ", ".join(blocks)
