"""Small operations on pytrees whose leaves lead with the client axis.

Arithmetic between trees (sums, scalings, dot products) is in `optax.tree`.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Mask, Rows, Scalar, Stack, Tree

WIDE = 2**14  # numbers of a leaf from which `parts` divides it
PARTS = 10  # at most

MEMBERS = (
    "ctx.cohort.gather takes the members' rows of all clients, ctx.cohort.scatter puts them back."
)


class NotHere(TypeError):
    """Rows of a stack were asked for that are not on the device."""


class Fetched:
    """A leaf [N, ...] of which only some rows are on the device, while a function is traced.

    It is no array: `take` of the very rows that are there gives their values, `put` of those rows
    gives their next values, `take` of other rows reads them where that can be, and whatever else is
    done with it raises `NotHere`, or a `TypeError` with this class's name. So nothing that needs
    other rows is ever computed without them.

    Attributes:
      values: [M, ...].
      rows: int32 [M], traced; the same object as the rows that are asked for.
      shape: [N, ...].
      reader: `reader(numbers, shapes, rows)` gives rows [K] of the leaves with those numbers as
        they were before any `put`; None where no other rows can be read.
      number: of the leaf, for the reader.
      changed: whether these values were `put`.
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

    def next(self, values: jax.Array) -> "Fetched":
        """The leaf with other values of its rows."""
        return Fetched(values, self.rows, self.shape[0], self.reader, self.number, True)

    def __getitem__(self, rows: Any) -> jax.Array:
        if rows is not self.rows:
            raise NotHere("Fetched: other rows than those that are on the device.")
        return self.values

    def _needs_all(self, *_: Any, **__: Any) -> Any:
        raise NotHere("Fetched: all rows of a stack of which some are on the device.")

    __array__ = __iter__ = __bool__ = __eq__ = __ne__ = _needs_all  # what objects answer wrongly
    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self.shape[0]


def on_device(tree: Tree) -> Tree:
    """The tree with what is on the device of each `Fetched` leaf."""
    return jax.tree.map(lambda x: x.values if isinstance(x, Fetched) else x, tree)


def check_rows(what: str, stack: Stack, count: int, hint: str = MEMBERS) -> None:
    """Raises `TypeError` unless every leaf of a stack leads with `count` rows."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(stack)[0]:
        if isinstance(leaf, Fetched) and leaf.shape[0] == count:
            continue
        if jnp.shape(leaf)[:1] != (count,):
            raise TypeError(
                f"{what} must lead with a row for each of {count} clients, got the shape "
                f"{jnp.shape(leaf)} at {jax.tree_util.keystr(path) or 'its only leaf'}. {hint}"
            )


def take(stack: Stack, rows: Rows | np.ndarray) -> Stack:
    """Rows of a stack: leaves [N, ...] indexed by `rows` [M] give leaves [M, ...].

    All rows in order, given as a NumPy array, are the stack itself: no copy.
    """
    if isinstance(rows, np.ndarray):
        counts = {len(leaf) for leaf in jax.tree.leaves(stack)}
        if counts == {len(rows)} and np.array_equal(rows, np.arange(len(rows))):
            return stack

    def of(leaf):
        return leaf[rows] if isinstance(leaf, Fetched) else jnp.take(leaf, rows, 0, mode="clip")

    leaves, tree = jax.tree.flatten(stack)
    far = [i for i, x in enumerate(leaves) if _is_far(x, rows)]
    read = dict(zip(far, _read([leaves[i] for i in far], jnp.asarray(rows)), strict=True))
    return tree.unflatten([read[i] if i in read else of(x) for i, x in enumerate(leaves)])


def _is_far(leaf: Any, rows: Rows | np.ndarray) -> bool:
    return isinstance(leaf, Fetched) and leaf.readable and rows is not leaf.rows


def _read(leaves: Sequence[Fetched], rows: Rows) -> list[jax.Array]:
    """Any rows [K] of leaves that can be read, those that were `put` as they are by now."""
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


def put(stack: Stack, rows: Rows, values: Stack) -> Stack:
    """The stack [N, ...] with `values` [M, ...] written to its `rows` [M] (distinct)."""

    def of(leaf, new):
        new = new.astype(leaf.dtype)
        if isinstance(leaf, Fetched):
            return leaf.next(jnp.broadcast_to(new, leaf[rows].shape))
        return leaf.at[rows].set(new)

    return jax.tree.map(of, stack, values)


def where(mask: Mask, chosen: Stack, other: Stack) -> Stack:
    """Row by row: `chosen` where `mask` [M] holds, `other` elsewhere (leaves [M, ...])."""

    def pick(a, b):
        return jnp.where(expand_to(a, mask), a, b)

    return jax.tree.map(pick, chosen, other)


def expand_to(leaf: jax.Array, values: jax.Array) -> jax.Array:
    """`values` [M] as [M, 1, ...] with as many axes as `leaf` [M, ...]: one value for each row.

    Several leading axes work alike: [M, M] becomes [M, M, 1, ...].
    """
    return values.reshape(values.shape + (1,) * (leaf.ndim - values.ndim))


def replicate(tree: Tree, count: int) -> Stack:
    """A stack of `count` equal rows."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), tree)


def rows_finite(stack: Stack, count: int) -> Mask:
    """bool [count]: which rows hold no NaN or infinity in any floating leaf."""
    finite = jnp.ones((count,), bool)
    for leaf in jax.tree.leaves(stack):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            finite &= _all_finite(leaf, 1)
    return finite


def is_finite(tree: Tree) -> Scalar:
    """bool []: whether every floating leaf of one tree is free of NaN and infinity."""
    flags = [
        _all_finite(leaf, 0)
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(flags)) if flags else jnp.array(True)


def squares_fit(tree: Tree) -> Scalar:
    """bool []: whether the squared distance of this tree to another such tree is finite.

    False for NaN, infinity, and numbers so large that their squares, summed over the floating
    leaves, overflow: beyond 2e15 for a model of a million float32 numbers.
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


def _all_finite(leaf: jax.Array, kept: int) -> jax.Array:
    """Whether all numbers are finite, bool with the first `kept` axes of the leaf."""
    return _all_of(jnp.isfinite, leaf, kept)


def _all_of(holds: Callable[[jax.Array], jax.Array], leaf: jax.Array, kept: int) -> jax.Array:
    """Whether it holds for all numbers, bool with the first `kept` axes of the leaf."""
    every = reduce(jnp.logical_and, map(holds, parts(leaf, kept)))
    return jnp.all(every, axis=tuple(range(kept, leaf.ndim)))


def parts(leaf: jax.Array, axis: int) -> list[jax.Array]:
    """A few equal parts of a wide leaf along an axis, to combine before what is left is reduced.

    Backends reduce slower than they combine. A narrow leaf is one part.
    """
    if leaf.ndim <= axis or leaf.size < WIDE:
        return [leaf]
    count = leaf.shape[axis]
    length = count // max(k for k in range(1, PARTS + 1) if count % k == 0)
    return [lax.slice_in_dim(leaf, at, at + length, axis=axis) for at in range(0, count, length)]


def join(shared: Tree, private: Tree) -> Tree:
    """Merges the two halves that `LeafPlan.split` returns."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, shared, private, is_leaf=lambda x: x is None
    )


def assemble(server: Tree, own: Tree) -> Stack | Broadcast:
    """Clients' models of the server's shared leaves and their own private ones.

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


def row(stack: Stack, index: Scalar | int) -> Tree:
    """One row of a stack, without the leading axis."""
    return jax.tree.map(lambda leaf: leaf[index], stack)


def path_name(path) -> str:
    """The "a/b/c" form of a key path of `jax.tree_util`."""
    return "/".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path)
