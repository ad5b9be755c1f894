"""Estimate of the peak device memory of a simulation before anything is compiled.

The estimate chooses the number of lanes of the program to compile, moves state to the host, refuses
programs that do not fit, and plans for described devices. XLA's `memory_analysis` comes too late
for this, as it needs a compiled program.
"""

import os
import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from fedjax_pfl.execution import tiles
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.utils.errors import gigabytes

# Operations that XLA computes in place or fuses: no buffer beside that of a dying operand.
FUSED = frozenset(
    """abs add and broadcast_in_dim ceil clamp concatenate convert_element_type copy cos div
    dynamic_update_slice eq erf exp expand_dims floor ge gt integer_pow iota is_finite le log log1p
    logistic lt max min mul ne neg not or pad pow reshape rsqrt scatter scatter-add select_n sign
    sin slice sqrt square squeeze stop_gradient sub tanh transpose""".split()  # noqa: SIM905
)
REDUCTIONS = frozenset(
    [
        "argmax",
        "argmin",
        "reduce_and",
        "reduce_max",
        "reduce_min",
        "reduce_or",
        "reduce_prod",
        "reduce_sum",
    ]
)
# Factor on the working memory for what a trace does not show: on a TPU the program itself, and
# weights that are converted before a loop or laid out anew for a product (5 to 15 % with the CNN).
UNTRACED = {"tpu": 1.1}


@dataclass(frozen=True)
class Memory:
    """Peak bytes on the devices in a round.

    Attributes:
      data: samples, labels and index lists.
      state: the algorithm's state of all runs.
      working: a round's other arrays: trained and mixed models, activations, measurements.
    """

    data: int
    state: int
    working: int

    @property
    def total(self) -> int:
        return self.data + self.state + self.working

    def __str__(self) -> str:
        return (
            f"{gigabytes(self.total)} (data {gigabytes(self.data)}, state "
            f"{gigabytes(self.state)}, a round's working memory {gigabytes(self.working)})"
        )


def nbytes(tree: Any, platform: str = "cpu") -> int:
    """Return the bytes of all arrays (or shapes) of a tree on a device of a platform."""
    return sum(tiles.nbytes(x.shape, x.dtype, platform) for x in jax.tree.leaves(tree))


def available(devices: int = 1) -> int | None:
    """Return the bytes available to a simulation: the devices' limits, or a CPU's memory."""
    statistics = [device.memory_stats() or {} for device in jax.local_devices()[:devices]]
    if all("bytes_limit" in one for one in statistics):
        return sum(int(one["bytes_limit"]) for one in statistics)
    return physical()


def physical() -> int | None:
    """Return the bytes of this machine's memory, or None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        return None


def peak(
    jaxpr: Any, owned: frozenset = frozenset(), devices: int = 1, platform: str = "cpu"
) -> int:
    """Return the largest number of live bytes while a traced program runs, without its inputs.

    Visits the equations, also in loops, branches and calls, and tracks the buffers still needed. A
    fused value has no buffer until an operation needs it as a whole. It then takes over that of an
    operand with no other use. A loop's carry is counted once: it is updated in place.

    Args:
      jaxpr: the program's, not closed.
      owned: inputs whose buffers the program may reuse; only these inputs are counted.
      devices: how many devices share the stacks. Outside a `shard_map` each of them
        gathers the larger operand of a product, unless that is a small sum over its clients, and
        in a round what is scanned over.
      platform: whose arrays they are, see `execution.tiles`.
    """
    return _Walk(devices, platform).peak(jaxpr, owned)


def working_bytes(traced: Any, owned: int, state_bytes: int, execution: Execution) -> int | None:
    """Estimate the bytes of a traced program in addition to its inputs.

    Args:
      owned: number of leading inputs whose buffers the program may reuse.
      state_bytes: bytes of these inputs.

    Returns:
      None, with a warning, where this version of JAX has other internals.
    """
    try:
        jaxpr = traced.jaxpr.jaxpr
        inputs = frozenset(jaxpr.invars[:owned])
        most = peak(jaxpr, inputs, execution.devices, execution.platform)
    except Exception as error:
        warnings.warn(
            f"The memory that this takes can't be estimated with JAX {jax.__version__} "
            f"({type(error).__name__}: {error}), so it is not checked.",
            stacklevel=3,
        )
        return None
    return round(max(most - state_bytes, 0) * UNTRACED.get(execution.platform, 1))


@dataclass(frozen=True)
class _Walk:
    """Walk through a program and everything that it calls; see `peak`."""

    devices: int
    platform: str
    in_round: bool = False  # the loop over runs is outside: no device has another run's part

    def peak(self, jaxpr: Any, owned: frozenset = frozenset()) -> int:
        last = _last_uses(jaxpr)
        live, fused = {v: self.size(v) for v in owned}, {}
        most = sum(live.values())

        def materialize(variables: set, i: int) -> None:
            """Give fused values buffers of their own."""
            for v in variables:
                if v in fused:
                    bases = {b for b in fused.pop(v) - variables if b in live and last[b] <= i}
                    room = max((live[b] for b in bases), default=0)
                    for b in bases:
                        if live[b] == room and room:
                            live[b] = 0  # taken over
                            break
                    live[v] = self.size(v)

        for i, equation in enumerate(jaxpr.eqns):
            read = _variables(equation.invars)
            name = equation.primitive.name
            if name in FUSED:
                bases = {b for v in read for b in (fused.get(v) or {v})}
                fused |= {v: bases for v in equation.outvars if v in last}
                continue
            if name not in REDUCTIONS:
                materialize(read, i)
            dying = {v for v in read if v in live and last[v] <= i}
            results = {v: self.size(v) for v in equation.outvars if v in last}
            results |= {v: results[v] + more for v, more in self.copies(equation, "out")}
            made = sum(results.values())
            if name == "dot_general" and self.devices > 1:
                made += self.devices * self.exchanged(equation)
            inner = self.inside(equation, dying)
            if inner is None:
                need = made
            else:
                inside, used_up = inner
                copies = self.copies(equation, "in")
                inside += sum(more for v, more in copies if v in live and v not in used_up)
                need = max(inside, made) - sum(live[v] for v in used_up)
            most = max(most, sum(live.values()) + need)
            live |= results
            live = {v: size for v, size in live.items() if last.get(v, -1) > i}
        materialize({v for v in jaxpr.outvars if not isinstance(v, Literal)}, len(jaxpr.eqns))
        return max(most, sum(live.values()))

    def exchanged(self, product: Any) -> int:
        """Return the bytes that each device gathers for a product of stacks.

        If a sum over the larger operand's clients is smaller than the operand, partial sums are
        exchanged instead.
        """
        larger = max((0, 1), key=lambda side: self.size(product.invars[side]))
        larger_size = self.size(product.invars[larger])
        summed, batched = (axes[larger] for axes in product.params["dimension_numbers"])
        rank = len(product.invars[larger].aval.shape)
        first = next((axis for axis in range(rank) if axis not in batched), None)
        return min(larger_size, self.size(product.outvars[0])) if first in summed else larger_size

    def copies(self, equation: Any, side: str) -> list[tuple[Any, int]]:
        """Return bytes of the copies of replicated inputs ("in") or outputs of a `shard_map`."""
        if equation.primitive.name != "shard_map":
            return []
        variables = equation.invars if side == "in" else equation.outvars
        pairs = zip(variables, equation.params[f"{side}_specs"], strict=True)
        replicated = _variables(v for v, spec in pairs if not any(spec))
        return [(v, (self.devices - 1) * self.size(v)) for v in replicated]

    def inside(self, equation: Any, dying: set) -> tuple[int, set] | None:
        """Return (peak within an equation, the freed inputs that it includes), or None.

        What a loop reads in every iteration is freed only after it.
        """
        name, params = equation.primitive.name, equation.params
        if name == "while":
            body, skipped = params["body_jaxpr"].jaxpr, params["body_nconsts"]
            looped = replace(self, in_round=True)
            first = dying.intersection(_variables(equation.invars[-len(equation.outvars) :]))
            return looped.peak(body, frozenset(body.invars[skipped:])), first
        if name == "scan":
            body = params["jaxpr"].jaxpr
            if params["length"] == 1:  # XLA makes it no loop
                return self.called(body, equation.invars, dying)
            # What is scanned over, and stacked, has an axis less inside: these come last.
            carried = sum(map(_same_rank, equation.outvars, body.outvars))
            whole = sum(map(_same_rank, equation.invars, body.invars))
            stacked = sum(self.size(v) for v in equation.outvars[carried:])
            carry = frozenset(body.invars[whole - carried : whole])
            if self.devices > 1 and self.in_round:
                stacked += self.devices * sum(self.size(v) for v in equation.invars[whole:])
            first = dying.intersection(_variables(equation.invars[whole - carried : whole]))
            return self.peak(body, carry) + stacked, first
        if name == "cond":
            operands = equation.invars[1:]
            found = [self.called(one.jaxpr, operands, dying) for one in params["branches"]]
            return max(size for size, _ in found), found[0][1]
        if name == "shard_map":
            one_device, size = replace(self, devices=1), params["mesh"].size
            most, used_up = one_device.called(params["jaxpr"], equation.invars, dying)
            return most * size, used_up
        bodies = [getattr(p, "jaxpr", p) for p in params.values() if hasattr(p, "jaxpr")]
        bodies += [p for p in params.values() if hasattr(p, "eqns") and not hasattr(p, "jaxpr")]
        if not bodies:
            return None
        if len(bodies[0].invars) == len(equation.invars):
            return self.called(bodies[0], equation.invars, dying)
        return self.peak(bodies[0]), set()

    def called(self, body: Any, operands: Any, dying: set) -> tuple[int, set]:
        """Return (peak of a body, the `dying` ones of its operands, whose buffers it may reuse)."""
        used_up = dying & _variables(operands)
        pairs = zip(operands, body.invars, strict=True)
        owned = {b for a, b in pairs if not isinstance(a, Literal) and a in used_up}
        return self.peak(body, frozenset(owned)), used_up

    def size(self, variable: Any) -> int:
        aval = variable.aval
        if not hasattr(aval, "shape") or jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            return 0
        return tiles.nbytes(aval.shape, aval.dtype, self.platform)


def _last_uses(jaxpr: Any) -> dict[Any, int]:
    """Return the index of the last equation that needs each value, also through fusions."""
    last = {v: len(jaxpr.eqns) for v in jaxpr.outvars if not isinstance(v, Literal)}
    for i, equation in reversed(list(enumerate(jaxpr.eqns))):
        until = i
        if equation.primitive.name in FUSED:
            until = max((last.get(v, i) for v in equation.outvars), default=i)
        for v in equation.invars:
            if not isinstance(v, Literal):
                last[v] = max(last.get(v, -1), until)
    return last


def _variables(operands: Any) -> set:
    return {v for v in operands if not isinstance(v, Literal)}


def _same_rank(outside: Any, inside: Any) -> bool:
    return np.ndim(outside.aval) == np.ndim(inside.aval)
