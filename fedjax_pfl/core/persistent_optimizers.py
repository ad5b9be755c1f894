"""Optimizer states that persist across rounds.

Every call of `ctx.train` in a round is a phase, named by its purpose, with states of its own, such
as FedRep's trainings of heads and of bodies. A client's optimizer is initialized when the client
first trains in a phase, and later continues from its last state, whichever model is trained.
"""

from typing import Any

from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.training import local_sgd
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import PerClient, Stack


@struct
class Phase:
    """Optimizer states of all clients in one phase.

    Attributes:
      begun: bool [N], whether the client has trained in this phase.
      states: [N, ...]; zeros for clients that have not.
    """

    begun: PerClient
    states: Stack


class Optimizers:
    """Provides local training with optimizer states while a round is traced.

    Attributes:
      phases: phases by name after the calls so far; while `extended_state.initial_phases` discovers
        them, only their states [M, ...].
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
        """Return the error of an algorithm whose optimizer states can't be kept."""
        return InputError(
            f"{self.name} takes local steps without ctx.train, or calls it in a loop or branch of "
            "its own, where optimizer states can't be kept: leave keep_optimizer_state out."
        )


def _without_states(trained: local_sgd.Trained) -> local_sgd.Trained:
    kind = type(trained)
    return kind(trained.models, trained.cohort, trained.loss, trained.gradient)
