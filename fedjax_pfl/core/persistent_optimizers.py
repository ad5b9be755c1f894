"""The states of local optimizers that outlive a client's rounds, kept beside an algorithm's own.

Every call of `ctx.train` in a round is a phase, named by its purpose, with states of its own: those
of FedRep's heads are other ones than those of its bodies. A client's optimizer is new when it first
trains in a phase, and goes on from there whatever model it is given next.
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
    """One phase of all clients.

    Attributes:
      begun: bool [N], whether the client has trained in it.
      states: of the optimizers, [N, ...]; zeros for the others.
    """

    begun: PerClient
    states: Stack


@struct
class StateWithOptimizers:
    """The state of a simulation whose clients keep their optimizers' states.

    Attributes:
      own: the algorithm's.
      optimizers: a `Phase` by name.
    """

    own: Any = nested()
    optimizers: dict[str, Phase] = per_client()


class Optimizers:
    """Gives the local training of one round its optimizers' states; filled while it is traced.

    Attributes:
      phases: by name, as they are after the calls so far; where `begin` finds them, their states
        alone, [M, ...].
    """

    def __init__(self, name: str, phases: dict[str, Phase] | None = None):
        self.name, self.phases = name, dict[str, Any](phases or {})
        self._finding, self._seen, self._trace = phases is None, set(), trace_state()

    def train(self, federation: Federation, models: Any, cohort: Cohort, purpose: str, **options):
        """`local_sgd.train` with the states of the next phase of that purpose."""
        if trace_state() != self._trace:
            raise self.own_steps()
        phase, count = purpose, 1
        while phase in self._seen:
            count += 1
            phase = f"{purpose} {count}"
        self._seen.add(phase)
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
        """The error of an algorithm that does not train by `ctx.train` alone."""
        return InputError(
            f"{self.name} has local steps of its own, whose optimizers begin as its definition "
            "says: leave keep_optimizer_state out."
        )


def _without_states(trained: local_sgd.Trained) -> local_sgd.Trained:
    kind = type(trained)
    return kind(trained.models, trained.cohort, trained.loss, trained.gradient)


def _unbegun(states: Stack, ctx: Any) -> Phase:
    """The phase before anybody trains, for states [M, ...] or their shapes."""
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), states)
    return Phase(jnp.zeros((ctx.num_clients,), bool), ctx.replicate(zeros))


def begin(algorithm: Any, ctx: Any, state: State) -> StateWithOptimizers:
    """An algorithm's first state with the phases of its rounds, which are traced to find them.

    Raises:
      InputError: the algorithm's local steps are its own, or the optimizer has no state, or one
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
    zeros = {phase: _unbegun(one, ctx) for phase, one in phases.items()}
    return StateWithOptimizers(state, zeros)


def own(state: State) -> State:
    """The algorithm's own state."""
    return state.own if isinstance(state, StateWithOptimizers) else state
