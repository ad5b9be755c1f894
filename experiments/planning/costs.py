"""What one round of a compiled program costs: cycles of its parts, and transfers between devices.

The bodies of loops count as often as they run. The library names its own loops after that, such as
"steps[45]" (`fedjax_pfl.execution.packed_vmap.Counts`); those with a constant bound tell it
themselves. Any other loop's body counts once, and the loop is named in the report. Of a condition's
branches the dearest counts; in a scope "seldom" the cheapest.
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
# The loop's own name is the last one of its scope: ".../vmap(steps[45])/while".
_COUNTED = re.compile(r"(\w+)\[([\d.e+]+)\]\)*/while$")
_CONDITION = re.compile(r"(\w+)\)*/cond$")


@dataclass
class Costs:
    """Of one round of all runs on one device; cycles are 0 where the compiler expects none.

    Attributes:
      step: cycles of one local step of all lanes, on average over the loops of local steps.
      steps: local steps of all those loops.
      evaluation: cycles of scoring once.
      rest: cycles of everything else in a round: mixing, orders of samples, copies.
      transfers: by kind, [how many, bytes of their results].
      loops: rows (scope, times in a round, cycles of the body) of the loops of local steps.
      unknown: scopes of loops whose bodies count once, not knowing better.
    """

    step: float = 0.0
    steps: float = 0.0
    evaluation: float = 0.0
    rest: float = 0.0
    transfers: dict[str, list[float]] = field(default_factory=dict)
    loops: list[tuple[str, float, float]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def cycles(self, eval_every: int = 1) -> float:
        """Of a round, models being scored after every so many."""
        return self.step * self.steps + self.rest + self.evaluation / eval_every


def count(module: Module) -> Costs:
    """The costs of one round of a program of `Lowered.rounds`."""
    return _Count(module).costs()


def total_cycles(module: Module) -> float:
    """Cycles of all that a program does."""
    return _Count(module).total(module.entry)


def counted(scope: str) -> tuple[str, float] | None:
    """("steps", 45.0) of a loop whose scope ends so; None for one without a count."""
    found = _COUNTED.search(scope)
    return (found[1], float(found[2])) if found else None


def condition(scope: str) -> str:
    """ "seldom" of a condition in a scope of that name."""
    found = _CONDITION.search(scope)
    return found[1] if found else ""


class _Count:
    """A walk through the program, which adds up."""

    def __init__(self, module: Module):
        self.module = module
        self.cycles: defaultdict[str, float] = defaultdict(float)
        self.loops: list[tuple[str, float, float]] = []
        self.unknown: dict[str, None] = {}
        self.seen: dict[Any, tuple[str, float, int]] = {}  # transfers
        self.known: dict[str, float] = {}

    def costs(self) -> Costs:
        self.visit(self.module.entry, 1.0, None)
        steps = sum(times for _, times, _ in self.loops)
        inside = sum(times * body for _, times, body in self.loops)
        transfers: dict[str, list[float]] = {}
        for kind, times, size in self.seen.values():
            total = transfers.setdefault(kind, [0.0, 0.0])
            total[0] += times
            total[1] += times * size
        return Costs(
            step=inside / max(steps, 1),
            steps=steps,
            evaluation=self.cycles[EVALUATION],
            rest=self.cycles[ROUND],
            transfers=transfers,
            loops=self.loops,
            unknown=list(self.unknown),
        )

    def visit(self, name: str, times: float, part: str | None) -> None:
        """Adds a computation that runs so often in a round.

        `part` is whose cycles they are; None outside a round, where nothing counts.
        """
        for one in self.module.computations.get(name, []):
            mine = self.part_of(one, part)
            if mine:
                self.cycles[mine] += times * one.cycles
            self.transfer(one, times if mine else 0.0, one.name)
            if one.kind == "while":
                self.loop(one, times, mine)
            elif one.kind == "conditional":
                if one.branches:
                    often = 0.0 if condition(one.scope) == ONCE else times
                    self.visit(self.taken(one), often, mine)
            elif one.kind == "call":
                self.visit(one.attribute("to_apply") or "", times, mine)
            elif mine:
                self.visit_transfers(one.attribute("calls") or "", times)

    def taken(self, one: Instruction) -> str:
        """The branch of a condition that counts."""
        choose = min if condition(one.scope) == SELDOM else max
        return choose(one.branches, key=self.total)

    def part_of(self, one: Instruction, part: str | None) -> str | None:
        scored = f"/{EVALUATION}/" in f"{one.scope}/"
        return EVALUATION if part == ROUND and scored else part

    def loop(self, one: Instruction, times: float, part: str | None) -> None:
        body = one.attribute("body") or ""
        what, often = self.trips(one)
        if part is None and what == "rounds":
            part = ROUND
        elif part == ROUND and what == "steps":
            self.loops.append((one.scope, times * often, self.total(body)))
            part = STEP
        self.visit(body, times * often, part)

    def trips(self, one: Instruction) -> tuple[str, float]:
        named = counted(one.scope)
        if named:
            return named
        often = self.module.trip_count(one)
        if often is None:
            self.unknown[one.scope] = None
        return "", float(often if often is not None else 1)

    def total(self, name: str) -> float:
        """Cycles of a computation and all that it calls, loops included."""
        if name in self.known:
            return self.known[name]
        total = 0.0
        for one in self.module.computations.get(name, []):
            total += one.cycles
            if one.kind == "while":
                total += self.trips(one)[1] * self.total(one.attribute("body") or "")
            elif one.kind == "conditional" and one.branches:
                total += self.total(self.taken(one))
            elif one.kind == "call":
                total += self.total(one.attribute("to_apply") or "")
        self.known[name] = total
        return total

    def visit_transfers(self, name: str, times: float) -> None:
        """Adds the transfers of a fusion or of an operation that goes on beside others."""
        for one in self.module.computations.get(name, []):
            # One that is spread over several fusions is written in each of them.
            self.transfer(one, times, one.channel or one.name)
            called = one.attribute("calls")
            if called:
                self.visit_transfers(called, times)

    def transfer(self, one: Instruction, times: float, where: str) -> None:
        """Adds a transfer. `where` tells it from others: those of a `shard_map` share a channel."""
        kind = one.kind.removesuffix("-start")
        if kind in TRANSFERS and times:
            before = self.seen.get(where, (kind, 0.0, 0))
            self.seen[where] = (kind, max(times, before[1]), max(one.result_bytes, before[2]))
