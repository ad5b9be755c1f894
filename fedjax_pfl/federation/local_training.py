"""How clients train in a round: the options, and the fields of a federation made from them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.federation.augmentation import AUGMENTATIONS, Augmentation, resolve_augmentation
from fedjax_pfl.federation.batching import BATCH_ORDERS, IN_ORDER, Schedule
from fedjax_pfl.federation.config_field import Group, Option, again, declared, option
from fedjax_pfl.federation.function_registry import Configured, checked_options
from fedjax_pfl.federation.lr_schedules import named_schedule
from fedjax_pfl.federation.optimizers import (
    SGD,
    check_optimizer,
    named_optimizer,
    optimizer_name,
)
from fedjax_pfl.federation.regularizers import ExtraLoss
from fedjax_pfl.utils.errors import InputError, require, unknown_name
from fedjax_pfl.utils.typing import Tree

if TYPE_CHECKING:
    from fedjax_pfl.federation.federation import Federation


PLAIN, CONSTANT = "sgd", "constant"  # the defaults


@dataclass(frozen=True)
class LocalTraining(Group):
    """Local training of all clients.

    "shuffled" draws a new order of a client's samples in each epoch. "partition" keeps that of the
    partition; "by_class" takes class after class, in the client's own class order (the published
    PLGA loader). These two never shuffle, and a round continues where the client's last one
    stopped, so all clients must take part.

    `optimizer` is a name, or any hashable function of a learning rate, such as `optax.adam`;
    momentum and weight decay are then its own options. Its state is new in each round, unless
    `keep_optimizer_state`. Gradients are clipped before it sees them: with extra losses and an
    algorithm's corrections, without weight decay.
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
    lr_schedule: str | Callable[..., Any] = option(
        CONSTANT,
        "of the learning rate over the rounds: 'constant', 'exponential', 'cosine', "
        "'warmup_cosine', or in Python a function (t, total) -> factor in round t (from 0) of "
        "total, both traced",
    )
    lr_schedule_options: dict[str, Any] | None = option(
        None, "options of a schedule given by name, such as {'final': 0.1}"
    )
    optimizer: str | Callable[..., Any] = option(
        PLAIN,
        "of local steps: 'sgd', 'adam', 'adamw' or another one that --list shows; or in Python a "
        "function of a learning rate that makes an optax optimizer",
    )
    optimizer_options: dict[str, Any] | None = option(
        None, "options of an optimizer given by name, such as {'b1': 0.8}"
    )
    momentum: float = again(SGD, "momentum")
    weight_decay: float = again(SGD, "weight_decay")
    clip_norm: float | None = option(
        None,
        "largest L2 norm of a minibatch's gradient; a longer one is scaled down to it",
        within="(0, inf)",
        noun="a finite number",
    )
    keep_optimizer_state: bool = option(
        False, "clients keep their optimizers' state, such as momentum, from round to round"
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
        checked_options("optimizer_options", self.optimizer_options, self.optimizer)
        check_optimizer("optimizer", self.made_optimizer())
        if self.optimizer != PLAIN:
            for name in SGD_OPTIONS:
                if getattr(self, name):
                    raise InputError(
                        f"{name} can't be given with the optimizer "
                        f"{optimizer_name(self.made_optimizer())}, which has its own: leave it "
                        "out, or give the optimizer its options."
                    )
        checked_options("lr_schedule_options", self.lr_schedule_options, self.lr_schedule)
        schedule = self.made_schedule()
        if schedule is not None:
            given, allowed = type(schedule).__name__, "a name or a function (t, total) -> factor"
            require(callable(schedule), "lr_schedule", given, allowed)
        if self.extra_loss is not None:
            given = type(self.extra_loss).__name__
            allowed = "an ExtraLoss such as WeightDistribution(10.0)"
            require(isinstance(self.extra_loss, ExtraLoss), "extra_loss", given, allowed)
            self.extra_loss.validate()
        for name in ("lr_schedule", "augment"):
            value = getattr(self, name)
            if callable(value):
                check_hashable(name, value)

    def made_optimizer(self) -> Any:
        """The factory of the local optimizer.

        Raises:
          InputError: no such name or option.
        """
        if not isinstance(self.optimizer, str):
            return self.optimizer
        options = dict(self.optimizer_options or {})
        if self.optimizer == PLAIN:
            own = {name: getattr(self, name) for name in SGD_OPTIONS}
            for name, value in own.items():
                if value and name in options:
                    raise InputError(f"{name} is given twice: also in optimizer_options.")
            options = own | options
        return named_optimizer(self.optimizer, options)

    def made_schedule(self) -> Any:
        """The learning rate's schedule, None for a constant rate.

        Raises:
          InputError: no such name or option.
        """
        if not isinstance(self.lr_schedule, str):
            return self.lr_schedule
        return named_schedule(self.lr_schedule, self.lr_schedule_options or {})

    def changed(self, **options: Any) -> "LocalTraining":
        """The same with other values, unchecked.

        Epochs given without steps replace the steps; another optimizer or schedule replaces the
        options of the one before.

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
        if _differ(options.get("optimizer", self.optimizer), self.optimizer):
            instead |= {"momentum": 0.0, "weight_decay": 0.0, "optimizer_options": None}
        if _differ(options.get("lr_schedule", self.lr_schedule), self.lr_schedule):
            instead["lr_schedule_options"] = None
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
        clip = self.clip_norm
        return {
            "learning_rate": np.asarray(self.learning_rate, dtype),
            "learning_rate_decay": np.asarray(self.learning_rate_decay, dtype),
            "schedule": self.schedule,
            "batch_order": self.batch_order,
            "optimizer": self.made_optimizer(),
            "clip_norm": None if clip is None else np.asarray(clip, dtype),
            "keep_optimizer_state": self.keep_optimizer_state,
            "augment": resolve_augmentation(self.augment, data.sample_shape),
            "extra_loss": extra_loss,
            "lr_schedule": self.made_schedule(),
        }

    @classmethod
    def of(cls, federation: "Federation") -> "LocalTraining":
        """The options that made those fields."""
        schedule, optimizer = federation.schedule, federation.optimizer
        plain = type(optimizer) is SGD and not optimizer.nesterov
        clip, extra = federation.clip_norm, federation.extra_loss
        by_optimizer, its_options = _said(PLAIN if plain else optimizer)
        by_schedule, of_schedule = _said(federation.lr_schedule or CONSTANT)
        return cls(
            local_epochs=schedule.epochs,
            local_steps=schedule.steps,
            batch_size=schedule.batch_size,
            drop_last=schedule.drop_last,
            batch_order=federation.batch_order,
            learning_rate=_written(federation.learning_rate),
            learning_rate_decay=_written(federation.learning_rate_decay),
            lr_schedule=by_schedule,
            lr_schedule_options=of_schedule,
            optimizer=by_optimizer,
            optimizer_options=its_options,
            momentum=optimizer.momentum if plain else 0.0,
            weight_decay=optimizer.weight_decay if plain else 0.0,
            clip_norm=None if clip is None else _written(clip),
            keep_optimizer_state=federation.keep_optimizer_state,
            extra_loss=extra,
            augment=federation.augment,
        )

    def numbers(self) -> dict[str, Any]:
        """The numbers of `SETTABLE`, and the names of another optimizer and schedule."""
        values = {name: getattr(self, name) for name in SETTABLE if name not in NAMES}
        if self.lr_schedule != CONSTANT:
            values["lr_schedule"] = optimizer_name(self.made_schedule())
        if self.optimizer == PLAIN and not self.optimizer_options:
            return values
        own = {name: value for name, value in values.items() if name not in SGD_OPTIONS}
        return own | {"optimizer": optimizer_name(self.made_optimizer())}


# What a run may set for one algorithm alone: numbers, booleans, and these names.
NAMES = ("optimizer", "lr_schedule")
SETTABLE: dict[str, Option] = {
    name: one
    for name, one in declared(LocalTraining).items()
    if one.kind in (bool, int, float) or name in NAMES
}
SGD_OPTIONS = ("momentum", "weight_decay")
RATES = ("learning_rate", "learning_rate_decay")  # those that vary inside a program


def _differ(one: Any, other: Any) -> bool:
    return type(one) is not type(other) or one != other


def _said(function: Any) -> tuple[Any, dict[str, Any] | None]:
    """An optimizer or schedule as (name, options) where it has a name, else as it is."""
    if isinstance(function, Configured):
        return function.name, dict(function.options) or None
    return function, None


def _written(number: Any) -> float:
    """The shortest decimal number of its type: 0.1 for float32's 0.1."""
    return float(str(np.asarray(number)))


def check_rates(rate: Any, decay: Any) -> tuple[float, float]:
    """The local learning rate and its decay as numbers.

    Raises:
      InputError: a value out of range.
    """
    rate, decay = (
        SETTABLE[name].check(value) for name, value in zip(RATES, (rate, decay), strict=True)
    )
    return rate, decay


def check_hashable(name: str, value: Any) -> None:
    """Raises `InputError` unless a value can be part of a compiled program."""
    try:
        hash(value)
    except TypeError as error:
        raise InputError(f"{name} must be hashable (tuples for lists): {error}.") from error
