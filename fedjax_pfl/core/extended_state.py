"""An algorithm's state together with what the engine keeps between rounds."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core.persistent_optimizers import Optimizers, Phase
from fedjax_pfl.core.upload_memory import UploadMemory
from fedjax_pfl.federation.optimizers import optimizer_name
from fedjax_pfl.uploads.stage import StageMemory
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import nested, per_client, per_server, struct
from fedjax_pfl.utils.typing import Stack, State


@struct
class ExtendedState:
    """An algorithm's state together with what the engine keeps between rounds.

    Attributes:
      own: the algorithm's state.
      optimizers: phases by name if clients keep the states of their optimizers, otherwise empty.
      errors: error feedback of compressed uploads, shared leaves [N, ...], or None.
      bound: the adaptive clipping bound of uploads, or None.
      history: sums of the clients' updates for a robust rule, shared leaves [N, ...], or None.
      centre: the server's last update for a robust rule, shared leaves, or None.
      attack: what attackers remember, or None.
    """

    own: Any = nested()
    optimizers: dict[str, Phase] = per_client()
    errors: Stack | None = per_client()
    bound: Any = per_server()
    history: Stack | None = per_client()
    centre: Any = per_server()
    attack: Any = per_server()


def _initial_phase(states: Stack, ctx: Any) -> Phase:
    """Return the phase before any client trains, for states [M, ...] or their shapes."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), states)
    return Phase(jnp.zeros((ctx.num_clients,), bool), ctx.replicate(zeros))


def initial_phases(algorithm: Any, ctx: Any, state: ExtendedState) -> dict[str, Phase]:
    """Return the phases before any client trains; which there are is found by tracing a round.

    Raises:
      InputError: the algorithm has its own local steps, or the optimizer has no state, or a state
        with random keys.
    """
    name, training = algorithm.name, ctx.federation.training
    optimizer = optimizer_name(training.make_optimizer())

    def first_round():
        optimizers, memory = Optimizers(name), UploadMemory(name, state, ctx.plan)
        algorithm.round(replace(ctx, optimizers=optimizers, memory=memory), state.own)
        if not optimizers.phases:
            raise optimizers.own_steps()
        return optimizers.phases

    phases = jax.eval_shape(first_round)
    leaves = jax.tree.leaves(phases)
    if not leaves:
        raise InputError(
            f"keep_optimizer_state has nothing to keep: {optimizer} without momentum or the "
            "like has no state."
        )
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves):
        raise InputError(
            f"{optimizer} draws from a random key in its state, which "
            "can't be kept: leave keep_optimizer_state out."
        )
    return {phase: _initial_phase(one, ctx) for phase, one in phases.items()}


def extend_initial_state(algorithm: Any, ctx: Any, state: State) -> State:
    """Return an algorithm's initial state with what the engine keeps, if anything.

    Raises:
      InputError: see `initial_phases`.
    """
    uploads, keep = ctx.federation.uploads, ctx.federation.training.keep_optimizer_state
    if uploads is not None and not uploads.remembers:
        uploads = None
    rule = ctx.federation.aggregator
    remembers = rule is not None and rule.remembers
    has_centre = rule is not None and rule.has_centre
    if not keep and uploads is None and not remembers and not has_centre:
        return state
    memory, history, centre = StageMemory(), None, None
    if uploads is not None or remembers or has_centre:
        shared, _ = ctx.plan.split(ctx.initial_model())
        zero = jax.tree.map(jnp.zeros_like, shared)
        zeros = ctx.replicate(zero)
        centre = zero if has_centre else None
        memory = memory if uploads is None else uploads.first_memory(zeros)
        history = zeros if remembers else None
    kept = (memory.errors, memory.bound, history, centre, memory.attack)
    whole = ExtendedState(state, {}, *kept)
    return replace(whole, optimizers=initial_phases(algorithm, ctx, whole)) if keep else whole


def extend_state(
    state: State, optimizers: Optimizers | None, memory: UploadMemory | None, like: State
) -> State:
    """Return an algorithm's state after a round in the form of `like`, the state before it."""
    if not isinstance(like, ExtendedState):
        return state
    assert memory is not None  # there is one for every extended state
    phases = {} if optimizers is None else optimizers.phases
    kept = (memory.errors, memory.bound, memory.history, memory.centre, memory.attack)
    return ExtendedState(state, phases, *kept)


def algorithm_state(state: State) -> State:
    """Return the algorithm's own state, without what the engine keeps."""
    return state.own if isinstance(state, ExtendedState) else state
