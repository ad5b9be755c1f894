"""Optimizer states that persist across rounds, stored beside the algorithm's own state.

Every call of `ctx.train` in a round is a phase, named by its purpose, with separate states:
FedRep's heads and bodies do not share theirs. A client's optimizer is initialized when the client
first trains in a phase, and continues from there whatever model it trains next.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core.round_observer import trace_state
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.optimizers import optimizer_name
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.training import local_sgd
from fedjax_pfl.uploads.stage import StageMemory
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import nested, per_client, per_server, struct
from fedjax_pfl.utils.typing import PerClient, Stack, State


@struct
class Phase:
    """Optimizer states of all clients in one phase.

    Attributes:
      begun: bool [N], whether the client has trained in this phase.
      states: [N, ...]; zeros for clients that have not.
    """

    begun: PerClient
    states: Stack


@struct
class ExtendedState:
    """An algorithm's state together with what the engine keeps between rounds.

    Attributes:
      own: the algorithm's state.
      optimizers: phases by name, if clients keep their optimizers' states; else empty.
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


class UploadMemory:
    """Provides the upload "model" with its memory while a round is traced.

    Attributes:
      errors, bound, history, centre, attack: as in `ExtendedState`, after the calls so far.
    """

    def __init__(self, name: str, state: ExtendedState):
        self.name, self.errors, self.bound = name, state.errors, state.bound
        self.history, self.centre, self.attack = state.history, state.centre, state.attack
        self._aggregated, self._trace = False, trace_state()

    def upload(self, stage, values, held, info, cohort: Cohort):
        """Return what the server receives from the members."""
        if trace_state() != self._trace:
            raise InputError(
                f"{self.name} sends within its own loop, where nothing can be kept between rounds: "
                "leave error_feedback and dp_adaptive_clip out, and take warmup=0 for mimic."
            )
        errors = None if self.errors is None else cohort.gather(self.errors)
        received, after = stage(values, held, info, StageMemory(errors, self.bound, self.attack))
        if errors is not None:
            self.errors = cohort.scatter(self.errors, after.errors)
        self.bound, self.attack = after.bound, after.attack
        return received

    def summed(self, updates: Stack, cohort: Cohort) -> Stack:
        """Add the members' updates to their history; return it, [M, ...].

        Raises:
          InputError: the algorithm aggregates more than once in a round.
        """
        self._once("foolsgold")
        new = jax.tree.map(jnp.add, cohort.gather(self.history), updates)
        self.history = cohort.scatter(self.history, new)
        return new

    def last_centre(self) -> Any:
        """Return the server's last update, before the only mean of a round.

        Raises:
          InputError: the algorithm aggregates more than once in a round.
        """
        self._once("keep_centre of cclip")
        return self.centre

    def _once(self, what: str) -> None:
        if self._aggregated or trace_state() != self._trace:
            raise InputError(f"{what} needs one mean a round, and {self.name} has several.")
        self._aggregated = True


class Optimizers:
    """Provides local training with optimizer states while a round is traced.

    Attributes:
      phases: phases by name after the calls so far; while `begin` discovers them, only their states
        [M, ...].
    """

    def __init__(self, name: str, phases: dict[str, Phase] | None = None):
        self.name, self.phases = name, dict[str, Any](phases or {})
        self._finding, self._used, self._trace = phases is None, set(), trace_state()

    def train(self, federation: Federation, models: Any, cohort: Cohort, purpose: str, **options):
        """Run `local_sgd.train` with the states of the next phase of that purpose."""
        if trace_state() != self._trace:
            raise self.own_steps()
        phase, count = purpose, 1
        while phase in self._used:
            count += 1
            phase = f"{purpose} {count}"
        self._used.add(phase)
        if self._finding:
            trained = local_sgd.train(federation, models, cohort, begun=False, **options)
            self.phases[phase] = trained.optimizer_state
            return _without_states(trained)
        before = self.phases[phase]
        mine = cohort.gather(before)
        trained = local_sgd.train(
            federation, models, cohort, optimizer_state=mine.states, begun=mine.begun, **options
        )
        active = options.get("active")
        moved = (cohort.mask if active is None else active) & ~trained.cohort.diverged
        after = Phase(mine.begun | moved, trained.optimizer_state)
        self.phases[phase] = cohort.scatter(before, after, where=moved)
        return _without_states(trained)

    def own_steps(self) -> InputError:
        """Return the error of an algorithm that trains by other means than `ctx.train`."""
        return InputError(
            f"{self.name} defines the initial optimizer states of its own local steps: leave "
            "keep_optimizer_state out."
        )


def _without_states(trained: local_sgd.Trained) -> local_sgd.Trained:
    kind = type(trained)
    return kind(trained.models, trained.cohort, trained.loss, trained.gradient)


def _initial_phase(states: Stack, ctx: Any) -> Phase:
    """Return the phase before any client trains, for states [M, ...] or their shapes."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), states)
    return Phase(jnp.zeros((ctx.num_clients,), bool), ctx.replicate(zeros))


def first_phases(algorithm: Any, ctx: Any, state: ExtendedState) -> dict[str, Phase]:
    """Return the phases before any client trains, found by tracing a round from a state.

    Raises:
      InputError: the algorithm has its own local steps, or the optimizer has no state, or a state
        with random keys.
    """
    name, training = algorithm.name, ctx.federation.training
    optimizer = optimizer_name(training.make_optimizer())

    def first_round():
        optimizers, memory = Optimizers(name), UploadMemory(name, state)
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


def begin(algorithm: Any, ctx: Any, state: State) -> State:
    """Return an algorithm's initial state with what the engine keeps between rounds."""
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
    return replace(whole, optimizers=first_phases(algorithm, ctx, whole)) if keep else whole


def extended(
    state: State, optimizers: Optimizers | None, memory: UploadMemory | None, like: State
) -> State:
    """Return an algorithm's state after a round with what the engine keeps between rounds."""
    if not isinstance(like, ExtendedState):
        return state
    phases = {} if optimizers is None else optimizers.phases
    if memory is None:
        return ExtendedState(state, phases, None, None, None, None, None)
    kept = (memory.errors, memory.bound, memory.history, memory.centre, memory.attack)
    return ExtendedState(state, phases, *kept)


def own(state: State) -> State:
    """Return the algorithm's own state."""
    return state.own if isinstance(state, ExtendedState) else state
