"""Operations on pytrees whose leaves lead with the client axis.

Arithmetic on trees (sums, scaling, inner products) is provided by `optax.tree`.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Mask, Rows, Scalar, Stack, Tree

WIDE = 2**14  # elements of a leaf from which `parts` divides it
PARTS = 10  # maximum number of parts

MEMBERS = (
    "ctx.cohort.gather takes the members' rows of all clients, ctx.cohort.scatter puts them back."
)


class RowsNotOnDevice(TypeError):
    """The requested rows of a stack are not on the device."""


def is_missing_rows(error: Exception) -> bool:
    """Return whether an error says that rows are not on the device.

    JAX's functions raise errors of their own, which name `PartialLeaf`.
    """
    return isinstance(error, RowsNotOnDevice) or PartialLeaf.__name__ in str(error)


class PartialLeaf:
    """A leaf [N, ...] of which only some rows are on the device while a function is traced.

    It is not an array: `take` of exactly these rows returns their values, `put` of them sets their
    next values, and `take` of other rows reads them if possible. All other uses raise
    `RowsNotOnDevice`, or a `TypeError` that names this class, so that nothing is computed without
    the rows it needs.

    Attributes:
      values: [M, ...].
      rows: int32 [M], traced; compared with requested rows by identity.
      shape: [N, ...].
      reader: `reader(numbers, shapes, rows)` returns rows [K] of the leaves with those numbers
        before any `put`; None if no other rows can be read.
      number: index of the leaf, for the reader.
      changed: whether the values were set by `put`.
    """

    def __init__(
        self,
        values: jax.Array,
        rows: Rows,
        count: int,
        reader: Callable[..., Any] | None = None,
        number: int = 0,
        changed: bool = False,
    ):
        self.values, self.rows = values, rows
        self.reader, self.number, self.changed = reader, number, changed
        self.shape = (count, *values.shape[1:])
        self.dtype, self.ndim = values.dtype, values.ndim

    @property
    def readable(self) -> bool:
        return self.reader is not None

    def next(self, values: jax.Array) -> "PartialLeaf":
        """Return the leaf with other values of its rows."""
        return PartialLeaf(values, self.rows, self.shape[0], self.reader, self.number, True)

    def __getitem__(self, rows: Any) -> jax.Array:
        if rows is not self.rows:
            raise RowsNotOnDevice("rows of clients that are not on the device")
        return self.values

    def _needs_all(self, *_: Any, **__: Any) -> Any:
        raise RowsNotOnDevice("all rows of per-client state, of which only some are on the device")

    # The defaults of objects would be wrong.
    __array__ = __iter__ = __bool__ = __eq__ = __ne__ = _needs_all
    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.shape[0]


def device_values(tree: Tree) -> Tree:
    """Return the tree with the values of each `PartialLeaf`, which are on the device."""
    return jax.tree.map(lambda x: x.values if isinstance(x, PartialLeaf) else x, tree)


def check_rows(what: str, stack: Stack, count: int, hint: str = MEMBERS) -> None:
    """Raise `TypeError` unless every leaf of a stack leads with `count` rows."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(stack)[0]:
        if isinstance(leaf, PartialLeaf) and leaf.shape[0] == count:
            continue
        if jnp.shape(leaf)[:1] != (count,):
            raise TypeError(
                f"{what} must lead with a row for each of {count} clients, got the shape "
                f"{jnp.shape(leaf)} at {jax.tree_util.keystr(path) or 'its only leaf'}. {hint}"
            )


def take(stack: Stack, rows: Rows | np.ndarray) -> Stack:
    """Take rows of a stack: leaves [N, ...] indexed by `rows` [M] become [M, ...].

    For all rows in order, given as a NumPy array, the stack itself is returned without a copy.
    """
    if isinstance(rows, np.ndarray):
        counts = {len(leaf) for leaf in jax.tree.leaves(stack)}
        if counts == {len(rows)} and np.array_equal(rows, np.arange(len(rows))):
            return stack

    def of(leaf):
        return leaf[rows] if isinstance(leaf, PartialLeaf) else jnp.take(leaf, rows, 0, mode="clip")

    leaves, tree = jax.tree.flatten(stack)
    wanted = [i for i, x in enumerate(leaves) if _must_be_read(x, rows)]
    read = dict(zip(wanted, _read([leaves[i] for i in wanted], jnp.asarray(rows)), strict=True))
    return tree.unflatten([read[i] if i in read else of(x) for i, x in enumerate(leaves)])


def _must_be_read(leaf: Any, rows: Rows | np.ndarray) -> bool:
    return isinstance(leaf, PartialLeaf) and leaf.readable and rows is not leaf.rows


def _read(leaves: Sequence[PartialLeaf], rows: Rows) -> list[jax.Array]:
    """Read rows [K] of readable leaves, including values that were set by `put`."""
    if not leaves:
        return []
    shapes = [jax.ShapeDtypeStruct((*rows.shape, *x.shape[1:]), x.dtype) for x in leaves]
    reader = leaves[0].reader
    assert reader is not None
    result = reader(tuple(x.number for x in leaves), shapes, rows)
    if not any(leaf.changed for leaf in leaves):
        return result
    same = rows[:, None] == leaves[0].rows
    known, at = jnp.any(same, axis=1), jnp.argmax(same, axis=1)
    return [
        where(known, leaf.values[at], old) if leaf.changed else old
        for leaf, old in zip(leaves, result, strict=True)
    ]


def put(stack: Stack, rows: Rows | tuple[Rows, Rows], values: Stack) -> Stack:
    """Write `values` [M, ...] to the distinct `rows` [M] of a stack [N, ...].

    Of pairs [N, N, ...] the rows are two index arrays, of rows and columns.

    Raises:
      InputError: they are no integers, but the stack is of integers.
    """

    def of(leaf, new):
        old, kind = leaf.dtype, new.dtype
        lossless = jnp.issubdtype(old, jnp.inexact) or not jnp.issubdtype(kind, jnp.inexact)
        allowed = f"{old}, as its rows are; let `init` return floats to keep fractions"
        require(lossless, "Type of what is written to a stack", str(kind), allowed)
        new = new.astype(leaf.dtype)
        if isinstance(leaf, PartialLeaf):
            return leaf.next(jnp.broadcast_to(new, leaf[rows].shape))
        return leaf.at[rows].set(new)

    return jax.tree.map(of, stack, values)


def where(mask: Mask, chosen: Stack, other: Stack) -> Stack:
    """Select rows of `chosen` where `mask` [M] holds, else of `other` (leaves [M, ...])."""

    def pick(a, b):
        return jnp.where(expand_to(a, mask), a, b)

    return jax.tree.map(pick, chosen, other)


def keep_rows(mask: Mask, stack: Stack) -> Stack:
    """Return a stack [M, ...] with zeros in the rows outside the mask [M]."""
    return where(mask, stack, jax.tree.map(jnp.zeros_like, stack))


def expand_to(leaf: jax.Array, values: jax.Array) -> jax.Array:
    """Append axes to `values` [M] to broadcast them over `leaf` [M, ...]: [M, 1, ...].

    `values` may have several axes: [M, M] becomes [M, M, 1, ...].
    """
    return values.reshape(values.shape + (1,) * (leaf.ndim - values.ndim))


def replicate(tree: Tree, count: int) -> Stack:
    """Return a stack of `count` equal rows."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)


def rows_finite(stack: Stack, count: int) -> Mask:
    """Return which rows are finite in all floating-point leaves, bool [count]."""
    finite = jnp.ones((count,), bool)
    for leaf in jax.tree.leaves(stack):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            finite &= _all_of(jnp.isfinite, leaf, 1)
    return finite


def is_finite(tree: Tree) -> Scalar:
    """Return whether all floating-point leaves of a tree are finite, bool []."""
    flags = [
        _all_of(jnp.isfinite, leaf, 0)
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(flags)) if flags else jnp.array(True)


def squares_fit(tree: Tree) -> Scalar:
    """Return whether the squared distance between trees like this one is finite, bool [].

    It is False for NaN, infinity, and numbers so large that the sum of squares over floating-point
    leaves may overflow: beyond 2e15 for a model of a million float32 numbers.
    """
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    count = sum(leaf.size for leaf in leaves)

    def fits(leaf):
        wide = jnp.finfo(jnp.promote_types(leaf.dtype, jnp.float32))  # sums are not in 16 bits
        most = math.sqrt(float(wide.max) / (64 * count))
        most = min(most, float(jnp.finfo(leaf.dtype).max))
        return jnp.abs(leaf) <= jnp.asarray(most, leaf.dtype)

    flags = [_all_of(fits, leaf, 0) for leaf in leaves]
    return jnp.all(jnp.stack(flags)) if flags else jnp.array(True)


def _all_of(holds: Callable[[jax.Array], jax.Array], leaf: jax.Array, axes: int) -> jax.Array:
    """Return whether a predicate holds, reduced over all but the first `axes` axes."""
    every = reduce(jnp.logical_and, map(holds, parts(leaf, axes)))
    return jnp.all(every, axis=tuple(range(axes, leaf.ndim)))


def parts(leaf: jax.Array, axis: int) -> list[jax.Array]:
    """Divide a wide leaf along an axis into a few equal parts, to combine elementwise first.

    Backends reduce slower than they combine elementwise. A narrow leaf is a single part.
    """
    if leaf.ndim <= axis or leaf.size < WIDE:
        return [leaf]
    count = leaf.shape[axis]
    length = count // max(k for k in range(1, PARTS + 1) if count % k == 0)
    return [lax.slice_in_dim(leaf, at, at + length, axis=axis) for at in range(0, count, length)]


def join(shared: Tree, private: Tree) -> Tree:
    """Merge the two trees that `LeafPlan.split` returns."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, shared, private, is_leaf=lambda x: x is None
    )


def assemble(server: Tree, own: Tree) -> Stack | Broadcast:
    """Combine the server's shared leaves and the clients' private ones into models.

    Args:
      server: the shared half of one model, as `LeafPlan.split` returns it.
      own: the private half, [k, ...], a row for each client.

    Returns:
      Models [k, ...]; one `Broadcast` model where no leaf is private.
    """
    rows = jax.tree.leaves(own)
    if not rows:
        return Broadcast(server)
    return join(replicate(server, rows[0].shape[0]), own)


def at(tree: Tree, path: Sequence[str]) -> Any:
    """Return the part of nested dicts at a path."""
    for name in path:
        tree = tree[name]
    return tree


def replace_at(tree: Tree, path: Sequence[str], part: Any) -> Any:
    """Return nested dicts with another part at a path."""
    if not path:
        return part
    return {**tree, path[0]: replace_at(tree[path[0]], path[1:], part)}


def row(stack: Stack, index: Scalar | int) -> Tree:
    """Return one row of a stack, without the leading axis."""
    return jax.tree.map(lambda leaf: leaf[index], stack)


def path_name(path: Sequence[Any]) -> str:
    """Format a key path of `jax.tree_util` as "a/b/c"."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path)


def by_path(tree: Tree, is_leaf: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Return the leaves of a tree by their paths, see `path_name`, in the tree's order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf)
    return {path_name(path): leaf for path, leaf in leaves}
