"""Local steps on a copy of a model before it is scored: how many, of which leaves, when."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedjax_pfl.federation.optimizers import check_optimizer, optimizer_name
from fedjax_pfl.federation.option import Group, option
from fedjax_pfl.federation.schedules import Schedule

ADAPTED_LEAVES = ("all", "head", "body")
MOMENTS = ("every", "last")


@dataclass(frozen=True)
class Adaptation(Group):
    """Local steps on a copy of a client's model before it is scored; the copy is then discarded.

    Steps, where there are any, take the place of epochs. Where
    learning rate, batch size or optimizer are None, they are the round's and the federation's.
    """

    epochs: int = option(
        1,
        "also score copies of models after so many local epochs",
        called="epochs of adaptation",
    )
    steps: int | None = option(None, "the same in minibatch steps", called="adapt_steps")
    leaves: str = option(
        "all",
        "trained part of such a copy: {choices}",
        choices=ADAPTED_LEAVES,
        called="group of leaves to adapt",
    )
    when: str = option(
        "every",
        "at every evaluation, or the last one only: {choices}",
        choices=MOMENTS,
        called="moment of adaptation",
    )
    learning_rate: float | None = option(
        None,
        "rate of these steps (default: the round's)",
        noun="a finite number of",
        called="adapt_learning_rate",
    )
    batch_size: int | None = option(
        None,
        "samples of their minibatches (default: as in a round)",
        low=1,
        called="adapt_batch_size",
    )
    optimizer: Callable[..., Any] | None = option(
        None, "hashable function of a learning rate that makes their optax optimizer"
    )

    def __str__(self) -> str:
        count, what = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        part = "" if self.leaves == "all" else f" of the {self.leaves}"
        batch = "" if self.batch_size is None else f", minibatches of {self.batch_size}"
        rate = "" if self.learning_rate is None else f", learning rate {self.learning_rate:g}"
        how = "" if self.optimizer is None else f", optimizer {optimizer_name(self.optimizer)}"
        return f"{count} local {what}{'' if count == 1 else 's'}{part}{batch}{rate}{how}"

    def validate(self) -> None:
        super().validate()
        if self.optimizer is not None:
            check_optimizer("optimizer of adaptation", self.optimizer)

    def schedule(self, local: Schedule) -> Schedule:
        """Its steps, in batches as local training has them unless it has a size of its own."""
        batch_size = self.batch_size or local.batch_size
        return Schedule(self.epochs, self.steps, batch_size, drop_last=local.drop_last)
