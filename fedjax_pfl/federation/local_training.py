"""How clients train in a round: the options, and the fields of a federation made from them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.errors import InputError, require, unknown_name
from fedjax_pfl.federation.augmentation import AUGMENTATIONS, Augmentation, resolve_augmentation
from fedjax_pfl.federation.extra_losses import ExtraLoss
from fedjax_pfl.federation.optimizers import SGD, check_optimizer, optimizer_name
from fedjax_pfl.federation.option import Group, Option, again, declared, option
from fedjax_pfl.federation.schedules import BATCH_ORDERS, IN_ORDER, Schedule
from fedjax_pfl.typing import Tree

if TYPE_CHECKING:
    from fedjax_pfl.federation.federation import Federation


@dataclass(frozen=True)
class LocalTraining(Group):
    """Local training of all clients.

    "shuffled" draws a new order of a client's samples in each epoch. "partition" keeps that of the
    partition; "by_class" takes class after class, in the client's own class order (the published
    PLGA loader). These two never shuffle, and a round continues where the client's last one
    stopped, so all clients must take part.

    `optimizer` is any hashable function of a learning rate, such as `SGD(nesterov=True)`; momentum
    and weight decay are then its own.
    """

    local_epochs: int = option(
        Schedule.epochs, "passes of a client over its training samples in a round"
    )
    local_steps: int | None = option(
        Schedule.steps, "minibatch steps in a round, instead of epochs"
    )
    batch_size: int = option(Schedule.batch_size, "samples of a minibatch", low=1)
    drop_last: bool = option(Schedule.drop_last, "leave out the incomplete minibatch of an epoch")
    batch_order: str = option("shuffled", "of samples: {choices}", choices=BATCH_ORDERS)
    learning_rate: float = option(
        0.1, "step size of local SGD in the first round", noun="a finite number of"
    )
    learning_rate_decay: float = option(
        1.0, "factor on the learning rate after each round", within="(0, 1]"
    )
    learning_rate_schedule: Callable[..., Any] | None = option(
        None,
        "function (t, total) -> factor of the learning rate in round t (from 0) of total; both are "
        "traced",
    )
    momentum: float = again(SGD, "momentum")
    weight_decay: float = again(SGD, "weight_decay")
    optimizer: Callable[..., Any] | None = option(
        None, "function of a learning rate that makes an optax optimizer, instead of SGD"
    )
    extra_loss: ExtraLoss | None = option(
        None, "added to the local loss of every algorithm, such as WeightDistribution(10.0)"
    )
    augment: str | Augmentation | None = option(
        None,
        "random change of training images: {choices}",
        choices=tuple(AUGMENTATIONS),
        called="augmentation",
    )

    def validate(self) -> None:
        super().validate()
        if self.optimizer is not None:
            check_optimizer("optimizer", self.optimizer)
            for name in ("momentum", "weight_decay"):
                if getattr(self, name):
                    raise InputError(
                        f"{name} can't be given with an optimizer, which has its own: leave it "
                        "out, or give SGD's options to the optimizer."
                    )
        schedule = self.learning_rate_schedule
        if schedule is not None:
            given, allowed = type(schedule).__name__, "a function (t, total) -> factor"
            require(callable(schedule), "learning_rate_schedule", given, allowed)
        if self.extra_loss is not None:
            given = type(self.extra_loss).__name__
            allowed = "an ExtraLoss such as WeightDistribution(10.0)"
            require(isinstance(self.extra_loss, ExtraLoss), "extra_loss", given, allowed)
            self.extra_loss.validate()
        for name in ("learning_rate_schedule", "augment"):
            value = getattr(self, name)
            if callable(value):
                check_hashable(name, value)

    def changed(self, **options: Any) -> "LocalTraining":
        """The same with other values, unchecked.

        Epochs given without steps replace the steps; an optimizer replaces SGD's options.

        Raises:
          InputError: no such option, or both epochs and steps.
        """
        known = declared(type(self))
        for name in options:
            if name not in known:
                raise unknown_name("option of local training", name, known)
        if options.get("local_epochs") is not None and options.get("local_steps") is not None:
            raise InputError(
                "local_epochs and local_steps can't both be given: steps take the place of epochs."
            )
        instead: dict[str, Any] = {}
        if options.get("local_epochs") is not None:
            instead["local_steps"] = None
        if options.get("optimizer") is not None:
            instead |= {"momentum": 0.0, "weight_decay": 0.0}
        return replace(self, **(instead | options))

    @property
    def schedule(self) -> Schedule:
        return Schedule(
            self.local_epochs,
            self.local_steps,
            self.batch_size,
            drop_last=self.drop_last,
            shuffle=self.batch_order not in IN_ORDER,
            fresh=self.batch_order == "fresh",
        )

    def parts(
        self, data: FederatedData, plan: LeafPlan, params: Tree, dtype: str
    ) -> dict[str, Any]:
        """Fields of a `Federation`.

        Args:
          data: of its clients.
          plan: of its model.
          params: shapes of the trainable part of the model.
          dtype: of the model.

        Raises:
          InputError: too many steps to count, or options that do not fit the data or the model.
        """
        self.schedule.check_counts(data.train.capacity)
        extra_loss = self.extra_loss
        if extra_loss is not None:
            extra_loss.check(params, plan, data.num_classes)
            extra_loss = jax.tree.map(lambda number: np.asarray(number, dtype), extra_loss)
        sgd = SGD(momentum=self.momentum, weight_decay=self.weight_decay)
        return {
            "learning_rate": np.asarray(self.learning_rate, dtype),
            "learning_rate_decay": np.asarray(self.learning_rate_decay, dtype),
            "schedule": self.schedule,
            "batch_order": self.batch_order,
            "optimizer": sgd if self.optimizer is None else self.optimizer,
            "augment": resolve_augmentation(self.augment, data.sample_shape),
            "extra_loss": extra_loss,
            "learning_rate_schedule": self.learning_rate_schedule,
        }

    @classmethod
    def of(cls, federation: "Federation") -> "LocalTraining":
        """The options that made those fields."""
        schedule, optimizer = federation.schedule, federation.optimizer
        plain = type(optimizer) is SGD and not optimizer.nesterov
        return cls(
            local_epochs=schedule.epochs,
            local_steps=schedule.steps,
            batch_size=schedule.batch_size,
            drop_last=schedule.drop_last,
            batch_order=federation.batch_order,
            learning_rate=_written(federation.learning_rate),
            learning_rate_decay=_written(federation.learning_rate_decay),
            learning_rate_schedule=federation.learning_rate_schedule,
            momentum=optimizer.momentum if plain else 0.0,
            weight_decay=optimizer.weight_decay if plain else 0.0,
            optimizer=None if plain else optimizer,
            extra_loss=federation.extra_loss,
            augment=federation.augment,
        )

    def numbers(self) -> dict[str, Any]:
        """The values of `NUMBERS`, and an optimizer's name instead of SGD's options."""
        values = {name: getattr(self, name) for name in NUMBERS}
        if self.optimizer is None:
            return values
        own = {name: value for name, value in values.items() if name not in SGD_OPTIONS}
        return own | {"optimizer": optimizer_name(self.optimizer)}


# Numbers and booleans: a run may set these for one algorithm alone.
NUMBERS: dict[str, Option] = {
    name: one for name, one in declared(LocalTraining).items() if one.kind in (bool, int, float)
}
SGD_OPTIONS = ("momentum", "weight_decay")
RATES = ("learning_rate", "learning_rate_decay")  # those that vary inside a program


def _written(number: Any) -> float:
    """The shortest decimal number of its type: 0.1 for float32's 0.1."""
    return float(str(np.asarray(number)))


def check_rates(rate: Any, decay: Any) -> tuple[float, float]:
    """The local learning rate and its decay as numbers.

    Raises:
      InputError: a value out of range.
    """
    rate, decay = (
        NUMBERS[name].check(value) for name, value in zip(RATES, (rate, decay), strict=True)
    )
    return rate, decay


def check_hashable(name: str, value: Any) -> None:
    """Raises `InputError` unless a value can be part of a compiled program."""
    try:
        hash(value)
    except TypeError as error:
        raise InputError(f"{name} must be hashable (tuples for lists): {error}.") from error
