"""Options of local adaptation before scoring."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax

from fedjax_pfl.federation.batching import COUNT_LIMIT, Count, Schedule
from fedjax_pfl.federation.optimizers import check_optimizer, optimizer_name
from fedjax_pfl.federation.option_groups import OptionGroup, option
from fedjax_pfl.utils.conversions import number
from fedjax_pfl.utils.errors import InputError, require

ADAPTED_LEAVES = ("all", "head", "body")
WHEN = ("every", "last")


@dataclass(frozen=True)
class JointEpochs(Schedule):
    """A schedule of max(floor(E n / B), E) steps for E epochs of n samples in minibatches of B."""

    def total_steps(self, size: Count) -> Count:
        steps = self.epochs * size // self.samples_per_step
        missing = (self.epochs - steps) * (steps < self.epochs)  # at least one step for each epoch
        return (steps + missing) * (size > 0)

    def check_counts(self, capacity: int, rounds: int = 1) -> None:
        super().check_counts(capacity, rounds)
        if self.epochs * int(capacity) >= COUNT_LIMIT:
            raise InputError(
                f"{self.epochs:,} epochs of a client with {capacity:,} samples are too many to be "
                f"counted: epochs times samples must be below {COUNT_LIMIT:,}."
            )


@dataclass(frozen=True)
class Adaptation(OptionGroup):
    """Local steps on a copy of a client's model before scoring; the copy is then discarded.

    By default a copy takes the local training of a round: the federation's schedule (shuffled),
    optimizer and batch size at the round's learning rate. The optimizer's state is new even with
    `keep_optimizer_state`. Its scores are then those of the model
    "trained", otherwise of "adapted". `steps` replaces `epochs`.

    Attributes:
      learning_rate: None for the round's. It, `rate_factor` and `proximal_weight` may be traced.
      rate_factor: factor on the learning rate; None for 1.
      joint_epochs: count minibatches over all E epochs, max(floor(E n / B), E) for n samples;
        otherwise each epoch has ceil(n / B), or floor(n / B) with drop_last.
      proximal_weight: weight mu of a loss term (mu / 2) |v - w|^2, where w is the model of which v
        is the copy; None for no such term.
    """

    epochs: int | None = option(
        None,
        "local epochs for which a copy of each model is trained; the copies are scored as the "
        "model 'adapted'",
        called="epochs of adaptation",
    )
    steps: int | None = option(
        None, "local steps of adaptation, instead of epochs", called="adapt_steps"
    )
    leaves: str = option(
        "all",
        "part of a copy that adaptation trains: {choices}",
        choices=ADAPTED_LEAVES,
        called="group of leaves to adapt",
    )
    when: str = option(
        "every",
        "evaluations that also score adapted copies: {choices}",
        choices=WHEN,
        called="adapt_when",
    )
    learning_rate: float | None = option(
        None,
        "learning rate of adaptation (default: the round's)",
        noun="a finite number of",
        called="adapt_learning_rate",
    )
    batch_size: int | None = option(
        None,
        "minibatch size of adaptation (default: as in a round)",
        low=1,
        called="adapt_batch_size",
    )
    optimizer: Callable[..., Any] | None = option(
        None, "hashable function of a learning rate that returns the copies' optax optimizer"
    )
    rate_factor: float | jax.Array | None = None
    joint_epochs: bool = False
    proximal_weight: float | jax.Array | None = None

    @property
    def as_in_a_round(self) -> bool:
        """Whether copies are trained exactly as a round's local training does by default."""
        return replace(self, when="every") == Adaptation()

    def __str__(self) -> str:
        count, what = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        counted = ", minibatches counted over all of them" if self.joint_epochs else ""
        part = "" if self.leaves == "all" else f" of the {self.leaves}"
        batch = "" if self.batch_size is None else f", minibatches of {self.batch_size}"
        rate = "" if self.learning_rate is None else f", learning rate {self.learning_rate:g}"
        if self.rate_factor is not None and self.rate_factor != 1:
            rate += f", {self.rate_factor:g} times the round's rate"
        how = "" if self.optimizer is None else f", optimizer {optimizer_name(self.optimizer)}"
        pull = "" if self.proximal_weight is None else ", with a proximal term"
        many = "" if count == 1 else "s"
        length = "local training as in a round" if count is None else f"{count} local {what}{many}"
        return f"{length}{counted}{part}{batch}{rate}{how}{pull}"

    def validate(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise InputError("Adaptation takes epochs or steps, not both: leave one out.")
        if self.optimizer is not None:
            check_optimizer("optimizer of adaptation", self.optimizer)
        require(
            isinstance(self.joint_epochs, bool),
            "joint_epochs of adaptation",
            self.joint_epochs,
            "True or False",
        )
        require(
            not self.joint_epochs or self.steps is None,
            "steps",
            self.steps,
            "None with joint_epochs",
        )
        if self.rate_factor is not None:
            number("rate_factor of adaptation", self.rate_factor, "a finite number of at least 0")
        if self.proximal_weight is not None:
            number(
                "proximal weight of adaptation",
                self.proximal_weight,
                "a finite number of at least 0",
            )

    def schedule(self, local: Schedule) -> Schedule:
        """Return the schedule of the steps, given that of local training."""
        batch_size = self.batch_size or local.batch_size
        epochs, steps, fresh = self.epochs, self.steps, False
        if epochs is None and steps is None:
            epochs, steps, fresh = local.epochs, local.steps, local.fresh
        kind = JointEpochs if self.joint_epochs else Schedule
        return kind(
            Schedule.epochs if epochs is None else epochs, steps, batch_size,
            drop_last=local.drop_last, fresh=fresh, poisson=local.poisson,
        )  # fmt: skip
