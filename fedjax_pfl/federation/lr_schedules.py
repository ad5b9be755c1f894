"""Schedules of the local learning rate over a simulation, those known by name.

A schedule is `(t, total) -> factor` of the rate in round t, counted from 0, of total; both are
traced. All local steps of a round have one rate, by which some algorithms divide, and it depends on
the round alone: a client that was absent comes back to the rate of the others.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.registries import F, Registry, configured, registering

LR_SCHEDULES: Registry = {}


def register_lr_schedule(name: str) -> Callable[[F], F]:
    """Decorator that gives a learning rate schedule a name, for scripts and `federate`.

    The function is `(t, total, **options) -> factor` of the rate in round `t` (from 0) of `total`;
    both are traced. Its options are the parameters whose default is a number or a boolean.
    """
    return registering("learning rate schedule", LR_SCHEDULES, name)


@register_lr_schedule("constant")
def constant(t: jax.Array, total: jax.Array) -> jax.Array:
    """The same rate in all rounds, but for a decay."""
    return jnp.ones(())


@register_lr_schedule("exponential")
def exponential(t: jax.Array, total: jax.Array, final: float = 0.01) -> jax.Array:
    """Falls by the same factor in each round, to `final` of the first at the end."""
    return jnp.asarray(final, float) ** (t / total)


@register_lr_schedule("cosine")
def cosine(t: jax.Array, total: jax.Array, final: float = 0.0) -> jax.Array:
    """Falls along half a cosine, to `final` of the first at the end."""
    return final + (1 - final) * (1 + jnp.cos(jnp.pi * t / total)) / 2


@register_lr_schedule("warmup_cosine")
def warmup_cosine(
    t: jax.Array, total: jax.Array, warmup: float = 0.1, final: float = 0.0
) -> jax.Array:
    """Rises in equal steps over a part `warmup` of the rounds, then falls as `cosine`."""
    rounds = jnp.round(warmup * total)
    rising = (t + 1) / jnp.maximum(rounds, 1)
    falling = cosine(t - rounds, jnp.maximum(total - rounds, 1), final)
    return jnp.where(t < rounds, rising, falling)


def named_schedule(name: str, options: Mapping[str, Any]) -> Callable[..., Any] | None:
    """The schedule of that name with options; None for a constant one.

    Raises:
      InputError: no such schedule or option, or a value that it can't have.
    """
    made = configured("learning rate schedule", LR_SCHEDULES, name, options)
    if made.function is constant:
        return None
    if made.function in (exponential, cosine, warmup_cosine):  # a user's have ranges of their own
        for option, value in made.options:
            never = made.function is exponential and value == 0
            allowed = f"in {'(0, 1]' if made.function is exponential else '[0, 1]'}"
            require(0 <= value <= 1 and not never, f"{option} of {name!r}", value, allowed)
    return made
