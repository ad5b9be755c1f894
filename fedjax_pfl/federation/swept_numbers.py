"""Numbers of a federation that can be swept inside one program."""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import Any

import jax.numpy as jnp

from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.local_training import RATES

# Parts of a federation with swept numbers: the path of each, and the prefix of names in settings.
SWEPT_PARTS = {
    ("sample_privacy",): "dp_",
    ("uploads", "privacy"): "dp_",
    ("uploads", "attack"): "attack_",
    ("aggregator",): "aggregator_",
}
COMPUTED_LATER = "noise"  # None until it is computed from an epsilon


def number_paths(federation: Federation) -> dict[str, tuple[str, ...]]:
    """Return the path of each of the numbers by its name in settings."""
    paths = {name: ("training", name) for name in RATES}
    for path, prefix in SWEPT_PARTS.items():
        part = reduce(lambda one, name: getattr(one, name, None), path, federation)
        for one in fields(part) if is_dataclass(part) else ():
            value = getattr(part, one.name)
            real = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)
            there = real or (value is None and one.name == COMPUTED_LATER)
            unused = one.name in getattr(part, "unused", ())
            if there and not unused and not one.metadata.get("static"):
                paths[prefix + one.name] = (*path, one.name)
    return paths


def with_numbers(federation: Federation, values: Mapping[str, Any]) -> Federation:
    """Return the federation with new values of its numbers, by name; they may be traced.

    Names that are no numbers of this federation are ignored.
    """
    for name, path in number_paths(federation).items():
        if name in values:
            federation = _replaced(federation, path, values[name])
    return federation


def sentences(federation: Federation) -> list[str]:
    """Return the federation's notes, with the values of swept numbers for names in braces."""
    paths = number_paths(federation)

    def value(match: re.Match[str]) -> str:
        name = match[1]
        return f"{reduce(getattr, paths[name], federation):g}" if name in paths else match[0]

    return [re.sub(r"{(\w+)}", value, note) for note in federation.notes]


def _replaced(node: Any, path: tuple[str, ...], value: Any) -> Any:
    """Return a tree of dataclasses with another value at a path."""
    name, *rest = path
    return replace(
        node, **{name: _replaced(getattr(node, name), tuple(rest), value) if rest else value}
    )
