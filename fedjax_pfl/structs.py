"""Frozen dataclasses that are pytrees: how methods, states and the federation are written."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")
REQUIRED: Any = dataclasses.MISSING


def static(default: Any = REQUIRED) -> Any:
    """A field that fixes a shape or the structure of a loop: part of the compiled program."""
    return dataclasses.field(default=default, metadata={"static": True})


def per_client() -> Any:
    """A state field whose leaves lead with the client axis, [N, ...]."""
    return dataclasses.field(metadata={"client_axes": 1})


def per_pair() -> Any:
    """A state field whose leaves lead with two client axes, [N, N, ...]."""
    return dataclasses.field(metadata={"client_axes": 2})


def shared() -> Any:
    """A state field without a client axis, such as a server model."""
    return dataclasses.field(metadata={"client_axes": 0})


@dataclass_transform(frozen_default=True, field_specifiers=(static, per_client, per_pair, shared))
def struct(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass and a pytree; fields are leaves unless `static`."""
    return jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True)(cls))


def client_axes(state: Any) -> dict[str, int]:
    """Number of leading client axes of every field of a state.

    Raises:
      TypeError: a field was declared without `per_client`, `per_pair` or `shared`.
    """
    axes = {}
    for field in dataclasses.fields(state):
        if "client_axes" not in field.metadata:
            raise TypeError(
                f"{type(state).__name__}.{field.name} must say which axes are client axes: "
                "declare it with per_client(), per_pair() or shared()."
            )
        axes[field.name] = field.metadata["client_axes"]
    return axes


def permute_clients(state: Any, order: jax.Array) -> Any:
    """The same state with the clients in another order: new row i is old row `order[i]`."""
    fields = {}
    for name, axes in client_axes(state).items():
        value = getattr(state, name)
        for axis in range(axes):
            value = jax.tree.map(lambda x, axis=axis: x.take(order, axis=axis), value)
        fields[name] = value
    return dataclasses.replace(state, **fields)
