"""Parser of a compiled program's text (`jax.stages.Compiled.as_text`), as far as plans read it."""

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

BITS = {"pred": 8, "bf16": 16, "tf32": 32, "c64": 64, "c128": 128, "token": 0}
_HEADING = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"\s+(ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>.*?) (?P<kind>[a-z][\w\-]*)\(")
_LESS = re.compile(r"ROOT .* compare\(.*?%?([\w.\-]+)\), direction=LT")


class Instruction(NamedTuple):
    """One line of a computation: `text`, with the `shape` of its result."""

    name: str
    kind: str
    shape: str
    text: str

    def find(self, pattern: str) -> str | None:
        """Return the first match of a pattern in the text."""
        match = re.search(pattern, self.text)
        return match[1] if match else None

    @property
    def scope(self) -> str:
        """The named scopes it was made in, such as "jit(f)/evaluation/while"."""
        return self.find(r'op_name="([^"]*)"') or ""

    @property
    def cycles(self) -> int:
        """The compiler's estimate of its cycles; 0 where there is none, as on GPUs."""
        return int(self.find(r'"estimated_cycles":"(\d+)"') or 0)

    @property
    def channel(self) -> str | None:
        """Number of a transfer between devices; the parts of one transfer share it."""
        return self.find(r"channel_id=(\d+)")

    def attribute(self, name: str) -> str | None:
        """Return the computation that an attribute such as "body" names."""
        return self.find(rf"[ ,]{name}=%?([\w.\-]+)")

    @property
    def branches(self) -> list[str]:
        """Computations of a conditional, of which one is run."""
        names = self.find(r"branch_computations=\{([^}]*)\}")
        if names:
            return [name.strip().removeprefix("%") for name in names.split(",")]
        both = map(self.attribute, ("true_computation", "false_computation"))
        return [name for name in both if name]

    @property
    def result_bytes(self) -> int:
        """Size of the result; of a transfer that is only begun, of what it will return."""
        parts = [
            (kind, [int(size) for size in axes.split(",") if size])
            for kind, axes in re.findall(r"\b([a-z]+\d*\w*)\[([\d,]*)\]", self.shape)
        ]
        if self.kind.endswith("-start") and self.kind != "all-reduce-start" and len(parts) > 1:
            parts = [part for part in parts if part[1]]  # without the scalars of its bookkeeping
            parts = parts[len(parts) // 2 :]
        return sum(math.prod(axes) * _bits(kind) // 8 for kind, axes in parts)


def _bits(kind: str) -> int:
    number = re.search(r"\d+", kind)  # f32, s8, f8e4m3fn, ...
    return BITS.get(kind, int(number[0]) if number else 0)


@dataclass(frozen=True)
class Module:
    """A program: its computations by name, and the name of that in which it begins."""

    computations: dict[str, list[Instruction]]
    entry: str

    def trip_count(self, loop: Instruction) -> int | None:
        """Return a loop's iterations, if the compiler or a constant bound gives them."""
        known = loop.find(r'"known_trip_count":\{"n":"(\d+)"\}')
        if known:
            return int(known)
        for one in self.computations.get(loop.attribute("condition") or "", []):
            bound = _LESS.search(one.text)
            if bound:
                return self._constants.get(bound[1])
        return None

    @cached_property
    def _constants(self) -> dict[str, int]:
        every = (one for instructions in self.computations.values() for one in instructions)
        values = {one.name: one.find(r" constant\((\d+)\)") for one in every}
        return {name: int(value) for name, value in values.items() if value}


def parse(text: str) -> Module:
    """Parse the text of a program.

    Raises:
      ValueError: it has no computation to begin with.
    """
    computations: dict[str, list[Instruction]] = {}
    entry = current = None
    for line in text.splitlines():
        match = _LINE.match(line) if line[:1].isspace() else None
        if match and current is not None:
            current.append(Instruction(match["name"], match["kind"], match["shape"], line))
        heading = None if line[:1].isspace() else _HEADING.match(line)
        if heading:
            current = computations[heading[2]] = []
            entry = heading[2] if heading[1] else entry
    if entry is None:
        raise ValueError("The text of the program has no ENTRY.")
    return Module(computations, entry)
