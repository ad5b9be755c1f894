"""Counting of steps, forward passes and releases within branches and loops of a round."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import PerClient

COUNTS, NAMES = ("steps", "forward_samples", "sent"), ("uploads", "trainings")
WHERE = (*NAMES, "weights", "counted", "sender")


class Counting:
    """A branch, or the body of a loop, whose local steps, forward passes and uploads are counted.

    Args:
      observer: the observer of the round.
      action: what is called.
      num_clients: N.
      sender: the member whose turn it is, or None.
      at_most: in how many of some number of rounds it is executed, at most; None for every round.

    Attributes:
      counts: which of `COUNTS` there are, once it is traced.
      names: its uploads and noisy trainings.
    """

    def __init__(
        self,
        observer: RoundObserver,
        action: Callable[..., Any],
        num_clients: int,
        sender: Cohort | None = None,
        at_most: Callable[[int], int] | None = None,
    ):
        self.observer, self.action, self.num_clients = observer, action, num_clients
        self.sender, self.at_most = sender, () if at_most is None else (at_most,)
        self.counts, self.names = set[str](), dict[str, list[Any]]()

    def __call__(self, *operands: Any) -> tuple[Any, dict[str, PerClient]]:
        """Return (the action's result, its counts, int32 [N] each)."""
        observer = self.observer
        held = {name: getattr(observer, name) for name in (*COUNTS, *WHERE)}
        sender = self.sender if observer.sender is None else observer.sender
        if self.sender is not None and observer.sender is not None:
            # No member may upload or train in nested turns: they run once for every pair.
            sender = replace(self.sender, rows=jnp.zeros(0, jnp.int32))
        vars(observer).update(dict.fromkeys(COUNTS), weights=None, sender=sender)
        vars(observer).update({name: [] for name in NAMES})
        observer.counted = trace_state()
        try:
            result = self.action(*operands)
            found = {name: getattr(observer, name) for name in COUNTS}
            # Some transformations trace twice: the last time counts.
            self.counts = {name for name, count in found.items() if count is not None}
            bounded = [
                one._replace(at_most=(*one.at_most, *self.at_most)) for one in observer.trainings
            ]
            self.names = {"uploads": observer.uploads, "trainings": bounded}
        finally:
            vars(observer).update(held)
        none = jnp.zeros((self.num_clients,), jnp.int32)
        return result, {name: none if count is None else count for name, count in found.items()}


def add_counts(observer: RoundObserver, counts: dict[str, PerClient], *actions: Counting) -> None:
    """Add what traced actions count, of which one was executed, or one for each member."""
    for name, count in counts.items():
        if any(name in action.counts for action in actions):
            before = getattr(observer, name)
            setattr(observer, name, count if before is None else before + count)
    for name in NAMES:
        most = Counter[Any]()
        for action in actions:
            most |= Counter(action.names[name])
        setattr(observer, name, [*getattr(observer, name), *most.elements()])
