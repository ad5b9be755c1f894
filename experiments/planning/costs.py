"""Costs of one round of a compiled program: cycles of its parts, and transfers between devices.

XLA's own cost analysis counts a loop's body once; here it is multiplied by the iterations. They
are a constant bound, or in the loop's name, such as "steps[45]" (`execution.packed_vmap.Counts`).
Other loops' bodies count once, and the loops are reported. The most expensive branch of a condition
counts; in a scope "seldom" the cheapest.
"""

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from .hlo import Instruction, Module

TRANSFERS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
ROUND, STEP, EVALUATION, ONCE, SELDOM = "round", "steps", "evaluation", "last_round", "seldom"
FUSED, ALL = "fused", "all"  # inside a fusion, which has its own estimate; cycles of all parts
# The loop's own name is the last one of its scope: ".../vmap(steps[45])/while".
_COUNTED = re.compile(r"(\w+)\[([\d.e+]+)\]\)*/while$")
_CONDITION = re.compile(r"(\w+)\)*/cond$")


@dataclass
class Costs:
    """Costs of one round of all runs on one device; cycles are 0 if the compiler estimates none.

    Attributes:
      step: cycles of one local step of all lanes, on average over the loops of local steps.
      steps: local steps of all those loops.
      evaluation: cycles of scoring once.
      rest: cycles of everything else in a round: mixing, orders of samples, copies.
      transfers: by kind, [number, bytes of their results].
      loops: rows (scope, times in a round, cycles of the body) of the loops of local steps.
      unknown: scopes of loops of unknown length.
    """

    step: float = 0.0
    steps: float = 0.0
    evaluation: float = 0.0
    rest: float = 0.0
    transfers: dict[str, list[float]] = field(default_factory=dict)
    loops: list[tuple[str, float, float]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def cycles(self, eval_every: int = 1) -> float:
        """Return the cycles of a round if models are scored every `eval_every` rounds."""
        return self.step * self.steps + self.rest + self.evaluation / eval_every


def count(module: Module) -> Costs:
    """Count the costs of one round of a program of `Lowered.rounds`."""
    walk = _Walk(module)
    walk.visit(module.entry, 1.0, None)
    steps = sum(times for _, times, _ in walk.loops)
    inside = sum(times * body for _, times, body in walk.loops)
    transfers: dict[str, list[float]] = {}
    for kind, times, size in walk.transfers.values():
        total = transfers.setdefault(kind, [0.0, 0.0])
        total[0] += times
        total[1] += times * size
    return Costs(
        step=inside / max(steps, 1),
        steps=steps,
        evaluation=walk.cycles[EVALUATION],
        rest=walk.cycles[ROUND],
        transfers=transfers,
        loops=walk.loops,
        unknown=list(walk.unknown),
    )


def total_cycles(module: Module) -> float:
    """Return the cycles of a program, including loops."""
    return _Walk(module).total(module.entry)


def counted(scope: str) -> tuple[str, float] | None:
    """Return a scope's name and count, such as ("steps", 45.0), or None."""
    match = _COUNTED.search(scope)
    return (match[1], float(match[2])) if match else None


def condition(scope: str) -> str:
    """Return the scope that names a condition, such as "seldom"; "" without one."""
    match = _CONDITION.search(scope)
    return match[1] if match else ""


class _Walk:
    """A walk through the program, which adds up."""

    def __init__(self, module: Module, known: dict[str, float] | None = None):
        self.module = module
        self.cycles: defaultdict[str | None, float] = defaultdict(float)
        self.loops: list[tuple[str, float, float]] = []
        self.unknown: dict[str, None] = {}
        self.transfers: dict[Any, tuple[str, float, int]] = {}
        self.known = {} if known is None else known  # totals by computation

    def visit(self, name: str, times: float, part: str | None) -> None:
        """Add a computation that runs `times` times in a round.

        `part` is the part of a round that they belong to; None outside of a round.
        """
        for one in self.module.computations.get(name, []):
            scored = part == ROUND and f"/{EVALUATION}/" in f"{one.scope}/"
            own = EVALUATION if scored else part
            self.cycles[own] += times * one.cycles
            # A transfer that is spread over several fusions is written in each of them.
            where = one.channel if own == FUSED and one.channel else one.name
            self.transfer(one, times if own else 0.0, where)
            if one.kind == "while":
                self.loop(one, times, own)
            elif one.kind == "conditional":
                skipped = condition(one.scope) == ONCE and own != ALL
                if one.branches:
                    self.visit(self.counted_branch(one), 0.0 if skipped else times, own)
            elif one.kind == "call":
                self.visit(one.attribute("to_apply") or "", times, own)
            elif own:
                self.visit(one.attribute("calls") or "", times, FUSED)

    def counted_branch(self, one: Instruction) -> str:
        """Return the branch of a condition that counts."""
        choose = min if condition(one.scope) == SELDOM else max
        return choose(one.branches, key=self.total)

    def loop(self, one: Instruction, times: float, part: str | None) -> None:
        body, named = one.attribute("body") or "", counted(one.scope)
        what, often = named or ("", self.module.trip_count(one))
        if often is None:
            self.unknown[one.scope] = None
            often = 1
        if part is None and what == "rounds":
            part = ROUND
        elif part == ROUND and what == "steps":
            self.loops.append((one.scope, times * often, self.total(body)))
            part = STEP
        self.visit(body, times * often, part)

    def total(self, name: str) -> float:
        """Return the cycles of a computation and of all that it calls, including loops."""
        if name not in self.known:
            walk = _Walk(self.module, self.known)
            walk.visit(name, 1.0, ALL)
            self.known[name] = walk.cycles[ALL]
        return self.known[name]

    def transfer(self, one: Instruction, times: float, where: str) -> None:
        """Add a transfer; `where` identifies it."""
        kind = one.kind.removesuffix("-start")
        if kind in TRANSFERS and times:
            before = self.transfers.get(where, (kind, 0.0, 0))
            size = max(one.result_bytes, before[2])
            self.transfers[where] = (kind, max(times, before[1]), size)
