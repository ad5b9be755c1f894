"""Optimizer states that persist across rounds, stored beside the algorithm's own state.

Every call of `ctx.train` in a round is a phase, named by its purpose, with separate states:
FedRep's heads and bodies do not share theirs. A client's optimizer is initialized when the client
first trains in a phase, and continues from there whatever model it trains next.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core.forward_counter import trace_state
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.optimizers import optimizer_name
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.training import local_sgd
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import nested, per_client, struct
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
class StateWithOptimizers:
    """An algorithm's state together with persistent optimizer states.

    Attributes:
      own: the algorithm's state.
      optimizers: phases by name.
    """

    own: Any = nested()
    optimizers: dict[str, Phase] = per_client()


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


def begin(algorithm: Any, ctx: Any, state: State) -> StateWithOptimizers:
    """Return an algorithm's initial state with its phases, found by tracing a round.

    Raises:
      InputError: the algorithm has its own local steps, or the optimizer has no state, or a state
        with random keys.
    """
    name, training = algorithm.name, ctx.federation.training
    optimizer = optimizer_name(training.make_optimizer())

    def first_round():
        optimizers = Optimizers(name)
        algorithm.round(ctx.with_optimizers(optimizers), state)
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
    zeros = {phase: _initial_phase(one, ctx) for phase, one in phases.items()}
    return StateWithOptimizers(state, zeros)


def own(state: State) -> State:
    """Return the algorithm's own state."""
    return state.own if isinstance(state, StateWithOptimizers) else state
