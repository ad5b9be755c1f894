"""Identity of the trace that JAX is in."""

from typing import Any

from jax.extend import core


def trace_state() -> Any:
    """Return a token that differs between a traced loop, branch or vmap and its surroundings."""
    return core.get_opaque_trace_state(convention="fedjax_pfl")
