"""Local optimizers by name, as functions of the learning rate."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax

from fedjax_pfl.federation.option_groups import OptionGroup, option
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, first_line, require, require_hashable
from fedjax_pfl.utils.registries import F, Registry, configured, registering
from fedjax_pfl.utils.typing import Tree


@dataclass(frozen=True)
class SGD(OptionGroup):
    """SGD as a function of the learning rate.

    It can be replaced with any hashable function `learning_rate -> optax.GradientTransformation`.
    """

    momentum: float = option(0.0, "momentum of local SGD", within="[0, 1)")
    nesterov: bool = option(False, "use Nesterov momentum", needs="momentum")
    weight_decay: float = option(0.0, "L2 penalty of local SGD")

    def __str__(self) -> str:
        parts = [f"momentum {self.momentum:g}"] if self.momentum else []
        parts += ["Nesterov"] if self.nesterov else []
        parts += [f"weight decay {self.weight_decay:g}"] if self.weight_decay else []
        return f"SGD ({', '.join(parts)})" if parts else "SGD"

    def __call__(self, learning_rate: jax.Array) -> optax.GradientTransformation:
        sgd = optax.sgd(learning_rate, self.momentum or None, self.nesterov)
        if not self.weight_decay:
            return sgd
        return optax.chain(optax.add_decayed_weights(self.weight_decay), sgd)


def sgd(
    learning_rate: jax.Array,
    momentum: float = SGD.momentum,
    nesterov: bool = SGD.nesterov,
    weight_decay: float = SGD.weight_decay,
) -> optax.GradientTransformation:
    """SGD with momentum and an L2 penalty."""
    return SGD(momentum, nesterov, weight_decay)(learning_rate)


# Optimizers of optax that only need a learning rate, gradients and parameters.
OPTAX = (
    "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "adan", "amsgrad",
    "fromage", "lamb", "lion", "nadam", "nadamw", "novograd", "radam", "rmsprop",
    "sign_sgd", "sm3", "yogi",
)  # fmt: skip
OPTIMIZERS: Registry = {"sgd": sgd} | {name: getattr(optax, name) for name in OPTAX}


@checked
def register_optimizer(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a local optimizer.

    The function is `(learning_rate, **options) -> optax.GradientTransformation`; the rate is
    traced. Its options are the parameters whose default is a number or a boolean.
    """
    return registering("optimizer", OPTIMIZERS, name)


def named_optimizer(name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the optimizer of a name with options: an `SGD` or a `Configured` function.

    Raises:
      InputError: unknown optimizer or option, or a value out of range.
    """
    made = configured("optimizer", OPTIMIZERS, name, options)
    own: dict[str, Any] = dict(made.options)
    if made.function is sgd:
        return SGD(**own)
    if made.function is optax.rmsprop:  # which ignores it then
        useless = own.get("nesterov") and not own.get("momentum")
        require(not useless, "nesterov of rmsprop", True, "absent without momentum")
    return made


def check_optimizer(name: str, optimizer: Any) -> None:
    """Raise `InputError` unless `optimizer` is a hashable function that makes an optax optimizer.

    It is traced once; nothing is computed.

    Args:
      name: name of the option, for error messages.
      optimizer: the value to check.
    """
    allowed = "a function learning_rate -> optax optimizer"
    require(callable(optimizer), name, type(optimizer).__name__, allowed)
    require_hashable(name, optimizer)
    if isinstance(optimizer, SGD):
        optimizer.checked()

    def make(rate: jax.Array) -> jax.Array:
        made = optimizer(rate)
        optimizes = hasattr(made, "init") and hasattr(made, "update")
        require(optimizes, name, f"one that makes {type(made).__name__}", allowed)
        return rate

    try:
        jax.eval_shape(make, jax.ShapeDtypeStruct((), np.float32))
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name} must be {allowed}: {first_line(error)}") from error


def check_update(name: str, optimizer: Any, params: Tree, private: bool = False) -> None:
    """Raise `InputError` unless an optimizer can update parameters in local steps.

    One update is traced; nothing is computed.

    Args:
      name: name of the option, for error messages.
      optimizer: function of the learning rate.
      params: shapes of one client's parameters.
      private: without the minibatch's loss, to which no noise is added.
    """
    if isinstance(optimizer, SGD):
        return

    def step(rate, params):
        made = optimizer(rate)
        memory = made.init(params)
        return (params, memory), updated(made, params, memory, params, None if private else rate)

    dtype = jax.tree.leaves(params)[0].dtype
    given = "gradients and parameters" if private else "gradients, parameters and the loss"
    try:
        before, after = jax.eval_shape(step, jax.ShapeDtypeStruct((), dtype), params)
    except Exception as error:
        raise InputError(
            f"{name} can't update this model from {given}: {first_line(error)}"
        ) from error
    kinds = [
        [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)] for tree in (before, after)
    ]
    if jax.tree.structure(before) != jax.tree.structure(after) or kinds[0] != kinds[1]:
        raise InputError(
            f"{name} must keep the shapes and types of the parameters and of its state in an "
            "update; this one changes them."
        )


def updated(
    optimizer: Any, gradient: Tree, memory: Tree, params: Tree, loss: jax.Array | None
) -> tuple[Tree, Tree]:
    """Return (updates, next state) of an optax optimizer, which may use the loss as `value`."""
    extra = isinstance(optimizer, optax.GradientTransformationExtraArgs)
    known = inspect.signature(optimizer.update).parameters.values() if extra else ()
    # Some have only other arguments, such as optax.contrib.sam.
    takes = any(p.name == "value" or p.kind is p.VAR_KEYWORD for p in known)
    if loss is None or not takes:
        return optimizer.update(gradient, memory, params)
    return optimizer.update(gradient, memory, params, value=loss)


def optimizer_name(optimizer: Callable[..., Any]) -> str:
    """Return an optimizer's name for tables: a function's name, or an object's text."""
    return getattr(optimizer, "__qualname__", None) or re.sub(
        r" at 0x[0-9a-f]+", "", str(optimizer)
    )


def formula(optimizer: Callable[..., Any], params: Tree) -> str:
    """Return an optimizer's traced computation as text, to distinguish functions of one name.

    Args:
      optimizer: function of the learning rate.
      params: arrays or shapes of one client's parameters.
    """

    def step(rate, gradient, params):
        made = optimizer(rate)
        return updated(made, gradient, made.init(params), params, rate)

    traced = jax.make_jaxpr(step)(np.float32(0), params, params)
    constants = [np.asarray(value).tolist() for value in traced.consts]
    return re.sub(r" at 0x[0-9a-f]+", "", f"{traced} {constants}")
