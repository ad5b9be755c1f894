"""What new clients get, for comparison with references."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from fedjax_pfl.core.context import Context


def personalized(algorithm, case, **state):
    """What the clients of `case` get as new ones in round 0, [N, ...].

    The server's model is `case.initial("server")`; their batches are `case.batches("personalize")`.

    Args:
      **state: further fields of the state, instead of the first ones.
    """

    @jax.jit
    def models(federation):
        ctx = Context(federation, case.key, jnp.int32(0), jnp.int32(1), case.cohort(0))
        start = replace(algorithm.init(ctx), server=ctx.initial_model("server"), **state)
        return algorithm.personalize(ctx, start, ctx.of_new_clients())

    return models(algorithm.prepare(case.federation))
