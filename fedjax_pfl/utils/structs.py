"""Frozen dataclasses that are pytrees: algorithms, states and federations."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax

from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.typing import Rows, State, Tree

T = TypeVar("T")
REQUIRED: Any = dataclasses.MISSING
_NUMBER = r"-?\d+(\.\d+)?"
RANGE = re.compile(rf"(at least|above) {_NUMBER}|in [\[(]{_NUMBER}, {_NUMBER}[\])]")


class Identity(NamedTuple):
    """The static data of a node, which must be equal for trees to share a compiled program.

    It includes the class, which JAX does not compare for registered dataclasses, and the types of
    the values, since 1 == 1.0 == True.
    """

    kind: type
    types: tuple[Any, ...]
    values: tuple[Any, ...]


def static(*, default: Any = REQUIRED, allowed: str = "", needs: str | Sequence[str] = ()) -> Any:
    """Declare a static field, which determines a shape or the structure of a loop.

    Args:
      default: default value, a keyword so that type checkers recognize it.
      allowed: range of a number, see `number`; a default of None is allowed, too.
      needs: fields without which it has no effect, see `check_needs`.
    """
    _check_range(allowed)
    metadata = {"static": True, "allowed": allowed, "needs": needs}
    return dataclasses.field(default=default, metadata=metadata)


def number(*, default: Any = REQUIRED, allowed: str = "", needs: str | Sequence[str] = ()) -> Any:
    """Declare a traced number with a range; a subclass that gives another default keeps it.

    Args:
      default: default value.
      allowed: "at least 0", "above 0" or an interval such as "in [0, 1)", as error messages say it;
        any number by default.
      needs: fields without which it has no effect, see `check_needs`.

    Raises:
      TypeError: `allowed` is no range.
    """
    _check_range(allowed)
    return dataclasses.field(default=default, metadata={"allowed": allowed, "needs": needs})


def check_ranges(node: Any) -> None:
    """Raise `InputError` unless the fields of a struct are in the ranges that they declare."""
    for field in dataclasses.fields(node):
        allowed = _declared(type(node), field.name, "allowed")
        value = getattr(node, field.name)
        if allowed and not (value is None and field.default is None):
            require(_is_within(value, allowed), field.name, value, allowed)


def check_needs(node: Any, of: str = "") -> None:
    """Raise `InputError` for a field of a dataclass that is given and has no effect.

    The metadata "needs" lists conditions under which the field has an effect: "drift" (differs from
    its default), "graph='learned'" (has that value), "lora_rank or lora_ranks" (either). All must
    hold. `of` follows the field's name in messages.
    """
    for field in dataclasses.fields(node):
        needs = _declared(type(node), field.name, "needs")
        for need in (needs,) if isinstance(needs, str) else needs:
            useless = _is_given(node, field.name) and not _is_met(node, need)
            value = getattr(node, field.name)
            require(not useless, f"{field.name}{of}", value, f"absent without {need}")


def _is_met(node: Any, need: str) -> bool:
    for word in need.split(" or "):
        name, equals, _ = word.partition("=")
        if equals and word == f"{name}={getattr(node, name)!r}":
            return True
        if not equals and _is_given(node, name):
            return True
    return False


def _is_given(node: Any, name: str) -> bool:
    """Return whether a field differs from its default; empty collections count as None."""
    value, default = getattr(node, name), type(node).__dataclass_fields__[name].default
    if (isinstance(value, Mapping | list | tuple) and not value) or getattr(value, "size", 1) == 0:
        return False
    return value is not None if default is None else bool(value != default)


def _declared(cls: type, name: str, key: str) -> Any:
    """Return the metadata of a field, those of the first class of the MRO that declares some."""
    bases = [vars(base).get("__dataclass_fields__", {}) for base in cls.__mro__]
    stated = [known[name].metadata.get(key) for known in bases if name in known]
    return next(filter(None, stated), "" if key == "allowed" else ())


def _check_range(allowed: str) -> None:
    if allowed and not RANGE.fullmatch(allowed):
        raise TypeError(
            f"allowed must read 'at least 0', 'above 0' or 'in [0, 1)', got {allowed!r}."
        )


def _is_within(value: Any, allowed: str) -> bool:
    words, _, end = allowed.rpartition(" ")
    if words in ("at least", "above"):
        return bool(value >= float(end) if words == "at least" else value > float(end))
    low, high = map(float, allowed[len("in [") : -1].split(","))
    above = value > low if allowed[len("in ")] == "(" else value >= low
    return bool(above and (value < high if allowed[-1] == ")" else value <= high))


def per_client() -> Any:
    """Declare a state field whose leaves lead with the client axis, [N, ...]."""
    return dataclasses.field(metadata={"client_axes": 1})


def per_pair() -> Any:
    """Declare a state field whose leaves lead with two client axes, [N, N, ...]."""
    return dataclasses.field(metadata={"client_axes": 2})


def per_server() -> Any:
    """Declare a state field without a client axis, such as a server model."""
    return dataclasses.field(metadata={"client_axes": 0})


def nested() -> Any:
    """Declare a state field that is a state itself, with its own declarations."""
    return dataclasses.field(metadata={"client_axes": None})


@dataclass_transform(
    frozen_default=True, field_specifiers=(static, number, per_client, per_pair, per_server, nested)
)
def struct(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass and a pytree; fields are leaves unless `static`.

    Instances of different classes never have equal tree structures, so they never share programs.
    """
    _check_defaults(cls)
    cls = dataclasses.dataclass(frozen=True)(cls)
    assert dataclasses.is_dataclass(cls)  # a type checker does not see it
    fields = {field.name: field for field in dataclasses.fields(cls)}
    fixed = [name for name, field in fields.items() if field.metadata.get("static")]
    traced = [name for name in fields if name not in fixed]
    keys = [jax.tree_util.GetAttrKey(name) for name in traced]
    values_of, leaves_of = _getter(fixed), _getter(traced)

    def flatten(node: T) -> tuple[tuple, Identity]:
        values = values_of(node)
        return leaves_of(node), Identity(cls, _types(values), values)

    def flatten_with_keys(node: T) -> tuple[list, Identity]:
        leaves, identity = flatten(node)
        return list(zip(keys, leaves, strict=True)), identity

    def unflatten(identity: Identity, leaves: Any) -> T:
        static_values = zip(fixed, identity.values, strict=True)
        return cls(**dict(zip(traced, leaves, strict=True)), **dict(static_values))

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


def _check_defaults(cls: type) -> None:
    """Raise `TypeError` if a field with a default precedes a state field."""
    defaults = [(name, vars(cls)[name]) for name in cls.__annotations__ if name in vars(cls)]
    for (name, default), (_, after) in itertools.pairwise(defaults):
        plain = not isinstance(default, dataclasses.Field)
        if plain and isinstance(after, dataclasses.Field) and "client_axes" in after.metadata:
            raise TypeError(
                f"{cls.__name__}.{name} must say which axes are client axes: declare it with "
                "per_client(), per_pair() or per_server(), called, and give its value in init."
            )


def _types(values: tuple) -> tuple:
    """Return the types of values, including those within tuples."""
    return tuple((type(v), _types(v)) if isinstance(v, tuple) else type(v) for v in values)


def _getter(names: list[str]) -> Any:
    """Return a function from an object to the tuple of its attributes `names`."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda node: tuple(getattr(node, name) for name in names)


def client_axes(state: Any) -> dict[str, int | None]:
    """Return the number of client axes of every field of a state; None for `nested` fields.

    Raises:
      TypeError: a field is not declared by `per_client`, `per_pair` or `per_server`.
    """
    axes = {}
    for field in dataclasses.fields(state):
        if "client_axes" not in field.metadata:
            raise TypeError(
                f"{type(state).__name__}.{field.name} must say which axes are client axes: "
                "declare it with per_client(), per_pair() or per_server()."
            )
        axes[field.name] = field.metadata["client_axes"]
    return axes


def permute_clients(state: State, order: Rows) -> State:
    """Permute the clients of a state: new row i is old row `order[i]`."""

    def permuted(value: Tree, axes: int) -> Tree:
        for axis in range(axes):
            value = jax.tree.map(lambda x, axis=axis: x.take(order, axis=axis), value)
        return value

    return by_field(permuted, state)


def by_field(change: Callable[[Tree, int], Tree], state: State) -> State:
    """Map `change(value, client axes)` over the fields of a state, including nested ones."""
    fields = {}
    for name, axes in client_axes(state).items():
        value = getattr(state, name)
        fields[name] = by_field(change, value) if axes is None else change(value, axes)
    return dataclasses.replace(state, **fields)


@struct
class Broadcast:
    """One model for all clients, without a client axis; it is not copied per client.

    In `run_clients`, the common initial carry of all clients.
    """

    model: Tree
