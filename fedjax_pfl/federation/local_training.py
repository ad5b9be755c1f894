"""Options of local training, and the schedules, rates and optimizers that they define."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import FrozenDict

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.federation.augmentation import AUGMENTATIONS, Augmentation, check_augmentation
from fedjax_pfl.federation.batching import BATCH_ORDERS, IN_ORDER, Schedule
from fedjax_pfl.federation.lr_schedules import LR_SCHEDULES, named_schedule
from fedjax_pfl.federation.optimizers import (
    OPTIMIZERS,
    SGD,
    check_optimizer,
    check_update,
    named_optimizer,
    optimizer_name,
)
from fedjax_pfl.federation.option_groups import Option, OptionGroup, declared, option, shared_option
from fedjax_pfl.federation.regularizers import ExtraLoss
from fedjax_pfl.utils.errors import (
    InputError,
    first_line,
    refused,
    require,
    require_hashable,
    unknown_name,
)
from fedjax_pfl.utils.registries import checked_options
from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.typing import Tree

PLAIN, CONSTANT = "sgd", "constant"  # the defaults


@struct
class LocalTraining(OptionGroup):
    """Options of local training.

    In a federation, `federation.training`, its numbers are arrays of the model's type.

    The batch order "shuffled" draws a new permutation of a client's samples in each epoch, "fresh"
    in each step. "poisson" draws each sample independently in each step, with the probability that
    it has in the other orders, as privacy accounting assumes. "partition" keeps the order of the
    partition; "by_class" iterates over classes, in the client's own class order (the published PLGA
    loader). These two never shuffle, and a round continues where the client's previous round
    stopped, so all clients must take part.

    `optimizer` is a name, or a hashable function of a learning rate, such as `optax.adam`, which
    has its own momentum and weight decay. If its update has an argument `value`, it gets the
    minibatch's loss. Its state is reinitialized in each round unless `keep_optimizer_state` is set.
    Clipping applies to gradients with extra losses and corrections of algorithms, without weight
    decay.
    """

    local_epochs: int = option(
        Schedule.epochs, "passes of a client over its training samples in a round"
    )
    local_steps: int | None = option(
        Schedule.steps, "minibatch steps in a round, instead of epochs"
    )
    batch_size: int = option(Schedule.batch_size, "minibatch size", low=1)
    drop_last: bool = option(Schedule.drop_last, "leave out the incomplete minibatch of an epoch")
    batch_order: str = option(
        "shuffled",
        "order of samples: {choices}; 'shuffled' anew in each epoch, 'fresh' in each step; "
        "'poisson': each sample drawn independently in each step; the others are not shuffled",
        choices=BATCH_ORDERS,
    )
    learning_rate: float = option(
        0.1, "step size of local SGD in the first round", traced=True, noun="a finite number of"
    )
    learning_rate_decay: float = option(
        1.0, "factor on the learning rate after each round", traced=True, within="(0, 1]"
    )
    lr_schedule: str | Callable[..., Any] = option(
        CONSTANT,
        "learning rate over the rounds: 'constant', 'exponential', 'cosine', "
        "'warmup_cosine', or in Python a function (t, total) -> factor in round t (from 0) of "
        "total, both traced",
        choices=LR_SCHEDULES,
        open=True,
        called="learning rate schedule",
    )
    lr_schedule_options: Mapping[str, Any] | None = option(
        None, "options of a schedule given by name, such as {'final': 0.1}"
    )
    optimizer: str | Callable[..., Any] = option(
        PLAIN,
        "local optimizer: 'sgd', 'adam', 'adamw' or another one that --list shows; or in Python a "
        "function of a learning rate that makes an optax optimizer",
        choices=OPTIMIZERS,
        open=True,
    )
    optimizer_options: Mapping[str, Any] | None = option(
        None, "options of an optimizer given by name, such as {'b1': 0.8}"
    )
    momentum: float = shared_option(SGD, "momentum")
    weight_decay: float = shared_option(SGD, "weight_decay")
    clip_norm: float | None = option(
        None,
        "L2 norm to which longer gradients of minibatches are scaled down",
        traced=True,
        within="(0, inf)",
        noun="a finite number",
    )
    keep_optimizer_state: bool = option(
        False, "keep the state of clients' optimizers, such as momentum, between rounds"
    )
    extra_loss: ExtraLoss | None = option(
        None,
        "added to the local loss of every algorithm, such as WeightDistribution(10.0)",
        traced=True,
    )
    augment: str | Augmentation | None = option(
        None,
        "random change of training images: {choices}",
        choices=tuple(AUGMENTATIONS),
        called="augmentation",
    )

    def validate(self) -> None:
        if self.local_steps is not None and self.local_epochs != Schedule.epochs:
            raise both_given()
        checked_options("optimizer_options", self.optimizer_options, self.optimizer)
        check_optimizer("optimizer", self.make_optimizer())
        if self.optimizer != PLAIN:
            for name in SGD_OPTIONS:
                if getattr(self, name):
                    raise InputError(
                        f"{name} can't be given with the optimizer "
                        f"{optimizer_name(self.make_optimizer())}, which has its own: leave it "
                        "out, or give the optimizer its options."
                    )
        checked_options("lr_schedule_options", self.lr_schedule_options, self.lr_schedule)
        schedule = self.make_lr_schedule()
        if schedule is not None:
            got, allowed = type(schedule).__name__, "a name or a function (t, total) -> factor"
            require(callable(schedule), "lr_schedule", got, allowed)
        if self.extra_loss is not None:
            got = type(self.extra_loss).__name__
            allowed = "an ExtraLoss such as WeightDistribution(10.0)"
            require(isinstance(self.extra_loss, ExtraLoss), "extra_loss", got, allowed)
            self.extra_loss.validate()
        for name in ("lr_schedule", "augment"):
            value = getattr(self, name)
            if callable(value):
                require_hashable(name, value)

    def make_optimizer(self) -> Any:
        """Return the local optimizer, a function of the learning rate.

        Raises:
          InputError: unknown name or option.
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

    def make_lr_schedule(self) -> Any:
        """Return the learning rate schedule, or None for a constant rate.

        Raises:
          InputError: unknown name or option.
        """
        if not isinstance(self.lr_schedule, str):
            return self.lr_schedule
        return named_schedule(self.lr_schedule, self.lr_schedule_options or {})

    def changed(self, **options: Any) -> "LocalTraining":
        """Return the options with other values, unchecked.

        Epochs replace steps, and steps epochs; another optimizer or schedule discards the options
        of the previous one.

        Raises:
          InputError: unknown option, or both epochs and steps.
        """
        known = declared(type(self))
        for name in options:
            if name not in known:
                raise unknown_name("option of local training", name, known)
        if options.get("local_epochs") is not None and options.get("local_steps") is not None:
            raise both_given()
        instead: dict[str, Any] = {}
        if options.get("local_epochs") is not None:
            instead["local_steps"] = None
        if options.get("local_steps") is not None:
            instead["local_epochs"] = Schedule.epochs
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
            poisson=self.batch_order == "poisson",
        )

    def rate(self, t: jax.Array, total: jax.Array) -> jax.Array:
        """Return the learning rate of round `t` of `total`; traced."""
        first: Any = self.learning_rate  # an array, see `fitted`
        decay: Any = self.learning_rate_decay
        rate = first * decay ** t.astype(decay.dtype)
        schedule = self.make_lr_schedule()
        if schedule is not None:
            rate *= jnp.asarray(schedule(t, total), rate.dtype)
        return rate.astype(first.dtype)

    def rate_factors(self, total: int) -> np.ndarray:
        """Return the schedule's factors in each round, [total]; empty without a schedule.

        Raises:
          InputError: the schedule can't be traced, or a factor is not finite or negative.
        """
        schedule = self.make_lr_schedule()
        if schedule is None:
            return np.ones(0)
        name, allowed = "lr_schedule", "a function (t, total) -> factor of traced numbers"
        try:
            factors = jax.jit(jax.vmap(schedule, (0, None)))(
                np.arange(total, dtype=np.int32), total
            )
        except Exception as error:
            raise InputError(f"{name} must be {allowed}: {first_line(error)}") from error
        shape = list(factors.shape[1:])
        require(not shape, name, f"a factor of shape {shape}", allowed)
        bad = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0)))
        if len(bad):
            allowed = "finite and at least 0 in each round"
            raise refused(name, f"{factors[bad[0]]} in round {bad[0] + 1}", allowed)
        return factors

    def local_optimizer(self, learning_rate: jax.Array | float) -> optax.GradientTransformation:
        """Return the optimizer of local steps, including gradient clipping."""
        made = self.make_optimizer()(learning_rate)
        if self.clip_norm is None:
            return made
        return optax.chain(optax.clip_by_global_norm(self.clip_norm), made)

    @property
    def augmentation(self) -> Augmentation | None:
        """The data augmentation, or None."""
        return AUGMENTATIONS[self.augment] if isinstance(self.augment, str) else self.augment

    def fitted(
        self, data: FederatedData, plan: LeafPlan, params: Tree, dtype: str
    ) -> "LocalTraining":
        """Return the options with numbers as arrays of the model's type, all hashable.

        The decay is at least float32: half precision would round 0.999 to 1.

        Args:
          data: the clients' data.
          plan: the model's leaf plan.
          params: shapes of the model's parameters.
          dtype: the model's type.

        Raises:
          InputError: there are too many steps to count, or options do not fit the data or model.
        """
        self.schedule.check_counts(data.train.capacity)
        if self.extra_loss is not None:
            self.extra_loss.check(params, plan, data.num_classes)
        check_augmentation(self.augment, data)
        check_update("optimizer", self.make_optimizer(), params)
        frozen = {
            name: FrozenDict(sorted(value.items()))
            for name in ("optimizer_options", "lr_schedule_options")
            if (value := getattr(self, name)) is not None
        }
        arrays = jax.tree.map(lambda number: np.asarray(number, dtype), replace(self, **frozen))
        decay = np.asarray(self.learning_rate_decay, jnp.promote_types(dtype, jnp.float32))
        return replace(arrays, learning_rate_decay=decay)

    def numbers(self) -> dict[str, Any]:
        """Return the values of `SETTABLE` by name; of optimizers and schedules only others than the
        defaults."""
        values = {name: _plain(getattr(self, name)) for name in SETTABLE if name not in NAMES}
        if self.lr_schedule != CONSTANT:
            values["lr_schedule"] = optimizer_name(self.make_lr_schedule())
        if self.optimizer == PLAIN and not self.optimizer_options:
            return values
        own = {name: value for name, value in values.items() if name not in SGD_OPTIONS}
        return own | {"optimizer": optimizer_name(self.make_optimizer())}


# Options that can be set for single algorithms: numbers, booleans, and these names.
NAMES = ("optimizer", "lr_schedule")
SETTABLE: dict[str, Option] = {
    name: one
    for name, one in declared(LocalTraining).items()
    if one.kind in (bool, int, float) or name in NAMES
}
SGD_OPTIONS = ("momentum", "weight_decay")
RATES = ("learning_rate", "learning_rate_decay")  # can be swept within one program


def both_given() -> InputError:
    """Return the error for both epochs and steps."""
    return InputError(
        "local_epochs and local_steps can't both be given: steps take the place of epochs."
    )


def _differ(one: Any, other: Any) -> bool:
    return type(one) is not type(other) or one != other


def _plain(value: Any) -> Any:
    """Return an array's number as the shortest decimal of its type: 0.1 for float32's 0.1."""
    return float(str(value)) if isinstance(value, np.ndarray) else value
