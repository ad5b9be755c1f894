"""What is attacked, by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis.strategies import SearchStrategy

Attack = Callable[[Any], str | None]
TARGETS: dict[str, "Target"] = {}


@dataclass(frozen=True)
class Target:
    """A field of attack.

    Attributes:
      name: in words, the id of its tests.
      share: its inputs in a thousand. Fast targets have more, so that time is dealt out evenly.
      prepare: called once in a process, whose working folder is a scratch folder of its own that
        holds the finished runs of `folders.finished_runs` under "finished". Returns the strategy
        that makes inputs and the attack: a function that takes one and returns nothing if it was
        accepted, or the sentence that refused it; what refuses may also be raised.
      seconds: that one input may take.
    """

    name: str
    share: int
    prepare: Callable[[], tuple[SearchStrategy, Attack]]
    seconds: int = 30


def target(name: str, share: int, seconds: int = 30):
    """Decorator that adds `prepare` to `TARGETS`."""

    def register(prepare):
        TARGETS[name] = Target(name, share, prepare, seconds)
        return prepare

    return register


def dealt(count: int, names: list[str]) -> dict[str, int]:
    """How many of `count` inputs each target gets: by shares, one at least."""
    whole = sum(TARGETS[name].share for name in names)
    return {name: max(1, round(count * TARGETS[name].share / whole)) for name in names}
