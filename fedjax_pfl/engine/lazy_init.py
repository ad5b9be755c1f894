"""States before the first round without as many copies of a row as there are clients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Literal


class _Alike(NamedTuple):
    """A value [N, ...] whose rows are all this one."""

    row: jax.Array
    count: int

    def whole(self) -> jax.Array:
        return jnp.broadcast_to(self.row, (self.count, *self.row.shape))


CALLS = ("jit", "pjit", "closed_call")


def with_first_rows(fn: Callable[..., Any], count: int) -> Callable[..., list[jax.Array]]:
    """A function of the same arguments that returns the leaves of `fn`'s result.

    A leaf [count, ...] of which the program shows that all rows are equal is [1, ...].
    """

    def leaves(*operands):
        closed = jax.make_jaxpr(fn)(*operands)
        flat = jax.tree.leaves(operands)
        found = _run(closed.jaxpr, closed.consts, flat, count)
        return [one.row[None] if isinstance(one, _Alike) else one for one in found]

    return leaves


def _run(jaxpr: Any, consts: Any, operands: Any, count: int) -> list[Any]:
    """Runs a program whose equal rows stay one for as long as nothing needs them all."""
    known: dict[Any, Any] = {}
    known.update(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, operands, strict=True))

    def read(variable):
        return variable.val if isinstance(variable, Literal) else known[variable]

    for equation in jaxpr.eqns:
        given, name = [read(v) for v in equation.invars], equation.primitive.name
        params = equation.params
        dims = params.get("broadcast_dimensions", (0,))
        if name in CALLS:
            inner = params.get("jaxpr", params.get("call_jaxpr"))
            made = _run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given, count)
        elif name == "broadcast_in_dim" and 0 not in dims and params["shape"][:1] == (count,):
            (one,) = [_whole(value) for value in given]
            shape, dims = params["shape"][1:], [axis - 1 for axis in dims]
            made = [_Alike(lax.broadcast_in_dim(one, shape, dims), count)]
        elif name == "convert_element_type" and isinstance(given[0], _Alike):
            made = [_Alike(given[0].row.astype(params["new_dtype"]), count)]
        else:
            bound = equation.primitive.get_bind_params(params)
            made = equation.primitive.bind(*map(_whole, given), **bound)
            made = made if equation.primitive.multiple_results else [made]
        known.update(zip(equation.outvars, made, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _whole(value: Any) -> Any:
    return value.whole() if isinstance(value, _Alike) else value
