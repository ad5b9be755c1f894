"""Learning rate schedules over the rounds of a simulation, by name.

A schedule is a function `(t, total) -> factor` of the learning rate in round t (from 0) of total;
both are traced. The rate depends only on the round: all local steps and all clients share it, and
some algorithms divide by it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import require
from fedjax_pfl.utils.registries import F, Registry, configured, registering

LR_SCHEDULES: Registry = {}


@checked
def register_lr_schedule(name: str) -> Callable[[F], F]:
    """Return a decorator that registers a learning rate schedule.

    The function is `(t, total, **options) -> factor` of the rate in round `t` (from 0) of `total`;
    both are traced. Its options are the parameters whose default is a number or a boolean.
    """
    return registering("learning rate schedule", LR_SCHEDULES, name)


@register_lr_schedule("constant")
def constant(t: jax.Array, total: jax.Array) -> jax.Array:
    """Keep the rate constant, apart from its decay."""
    return jnp.ones(())


@register_lr_schedule("exponential")
def exponential(t: jax.Array, total: jax.Array, final: float = 0.01) -> jax.Array:
    """Decay by a constant factor per round to `final` at the end."""
    return jnp.asarray(final, float) ** (t / total)


@register_lr_schedule("cosine")
def cosine(t: jax.Array, total: jax.Array, final: float = 0.0) -> jax.Array:
    """Decay along half a cosine to `final` at the end."""
    return final + (1 - final) * (1 + jnp.cos(jnp.pi * t / total)) / 2


@register_lr_schedule("warmup_cosine")
def warmup_cosine(
    t: jax.Array, total: jax.Array, warmup: float = 0.1, final: float = 0.0
) -> jax.Array:
    """Increase linearly over a fraction `warmup` of the rounds, then decay as `cosine`."""
    rounds = jnp.round(warmup * total)
    rising = (t + 1) / jnp.maximum(rounds, 1)
    falling = cosine(t - rounds, jnp.maximum(total - rounds, 1), final)
    return jnp.where(t < rounds, rising, falling)


def named_schedule(name: str, options: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the schedule of a name with options, or None for a constant one.

    Raises:
      InputError: unknown schedule or option, or a value out of range.
    """
    made = configured("learning rate schedule", LR_SCHEDULES, name, options)
    if made.function is constant:
        return None
    if made.function in (exponential, cosine, warmup_cosine):  # others have no known ranges
        for option, value in made.options:
            never = made.function is exponential and value == 0
            allowed = f"in {'(0, 1]' if made.function is exponential else '[0, 1]'}"
            require(0 <= value <= 1 and not never, f"{option} of {name!r}", value, allowed)
    return made
