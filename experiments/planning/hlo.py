"""Reads the text of a compiled program (`jax.stages.Compiled.as_text`): what calls what, and costs.

Only what plans need: computations, their instructions' kinds, results, names, and on TPU the cycles
that the compiler expects.
"""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

BITS = {"pred": 8, "bf16": 16, "tf32": 32, "c64": 64, "c128": 128, "token": 0}
_HEADING = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"\s+(ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>.*?) (?P<kind>[a-z][\w\-]*)\(")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_LESS = re.compile(r" compare\((?P<operands>.*)\), direction=LT")


class Instruction(NamedTuple):
    """One line of a computation, `text`, whose result has the `shape` written there."""

    name: str
    kind: str
    shape: str
    text: str

    @property
    def scope(self) -> str:
        """Where the program's author made it, such as "jit(f)/evaluation/while"."""
        found = re.search(r'op_name="([^"]*)"', self.text)
        return found[1] if found else ""

    @property
    def cycles(self) -> int:
        """That the compiler expects it to take; 0 where it does not say, as on GPUs."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.text)
        return int(found[1]) if found else 0

    @property
    def channel(self) -> str | None:
        """Number of a transfer between devices; parts of one that are spread out share it."""
        found = re.search(r"channel_id=(\d+)", self.text)
        return found[1] if found else None

    def attribute(self, name: str) -> str | None:
        """The computation that an attribute such as "body" names."""
        found = re.search(rf"[ ,]{name}=%?([\w.\-]+)", self.text)
        return found[1] if found else None

    @property
    def branches(self) -> list[str]:
        """Computations of a conditional, of which one is run."""
        found = _BRANCHES.search(self.text)
        if found:
            return [name.strip().removeprefix("%") for name in found[1].split(",")]
        both = map(self.attribute, ("true_computation", "false_computation"))
        return [name for name in both if name]

    @property
    def result_bytes(self) -> int:
        """Of what it returns; of a transfer that is only begun, of what it will return."""
        parts = arrays(self.shape)
        if self.kind.endswith("-start") and self.kind != "all-reduce-start" and len(parts) > 1:
            parts = [part for part in parts if part[1]]  # without the scalars of its bookkeeping
            parts = parts[len(parts) // 2 :]
        return sum(_nbytes(*part) for part in parts)


@dataclass(frozen=True)
class Module:
    """A program: its computations by name, and the name of that in which it begins."""

    computations: dict[str, list[Instruction]]
    entry: str

    def trip_count(self, loop: Instruction) -> int | None:
        """How often a loop's body runs, if its text tells: by the compiler's word, or because it
        counts up to a constant."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.text)
        if known:
            return int(known[1])
        condition = self.computations.get(loop.attribute("condition") or "", [])
        for one in condition:
            less = _LESS.search(one.text) if one.text.lstrip().startswith("ROOT") else None
            if less:
                bound = less["operands"].rpartition(", ")[2]
                return self._constants.get(bound.split()[-1].removeprefix("%"))
        return None

    @cached_property
    def _constants(self) -> dict[str, int]:
        """Values of whole constants by name."""
        result = {}
        for instructions in self.computations.values():
            for one in instructions:
                value = re.search(r" constant\((\d+)\)", one.text)
                if one.kind == "constant" and value:
                    result[one.name] = int(value[1])
        return result


def parse(text: str) -> Module:
    """The program of a text.

    Raises:
      ValueError: it has no computation to begin with.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = current = None
    for line in text.splitlines():
        if line[:1].isspace():
            found = _LINE.match(line)
            if found and current is not None:
                computations[current].append(
                    Instruction(found["name"], found["kind"], found["shape"], line)
                )
            continue
        heading = _HEADING.match(line)
        if heading:
            current = heading[2]
            computations[current] = []
            entry = current if heading[1] else entry
    if entry is None:
        raise ValueError("The text of the program has no ENTRY.")
    return Module(computations, entry)


def arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """(type, axes) of every array of a shape such as "(f32[2,3]{1,0}, s32[])"."""
    return [
        (kind, tuple(int(size) for size in axes.split(",") if size))
        for kind, axes in _ARRAY.findall(shape)
    ]


def _nbytes(kind: str, axes: tuple[int, ...]) -> int:
    bits = BITS.get(kind)
    if bits is None:
        number = re.search(r"\d+", kind)  # f32, s8, f8e4m3fn, ...
        bits = int(number[0]) if number else 0
    return math.prod(axes) * bits // 8
