"""The end of a simulation: its last models, and models of clients that never took part."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from fedjax_pfl.errors import require
from fedjax_pfl.execution.locations import short_locations
from fedjax_pfl.execution.processes import readable
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.spreading import on_devices
from fedjax_pfl.simulation.program import Program
from fedjax_pfl.simulation.runs import over_runs
from fedjax_pfl.structs import Broadcast
from fedjax_pfl.typing import Stack, State, Tree


@dataclass(frozen=True)
class Final:
    """The end of a simulation on the device: source of its models, and of new clients' models.

    Attributes:
      program: with the rounds that were asked for, on which schedules depend.
      at_rest: the states after the last round, as they lie on the devices.
      done: rounds simulated; None for all.
    """

    program: Program
    at_rest: State
    done: int | None = None

    @property
    def states(self) -> State:
        """The states after the last round, of the clients alone; see `Program.of_clients`."""
        return self.program.of_clients(self.at_rest)

    @short_locations()
    def models(self, rows: Sequence[int] | None = None) -> dict[str, Stack | Broadcast]:
        """Models after the last round, by name: [runs, k, ...], or [runs, ...] if `Broadcast`."""
        count = self.program.federation.num_clients
        asked = np.arange(count) if rows is None else np.asarray(rows)
        bad = [int(r) for r in asked if not 0 <= r < count]
        require(not bad, "rows", bad, f"clients in 0..{count - 1}")
        return self.program.models(self.at_rest, self._last(), asked.astype(np.int32))

    def backbone(self) -> Tree | None:
        """The leaves that no client's model holds, [runs, ...], or None."""
        return readable(_backbone(self.program.runs, self.program.federation))

    @short_locations()
    def personalize(self, new_clients: Federation) -> Stack:
        """Models of clients that never took part, leaves [runs, K, ...].

        Raises:
          InputError: the algorithm uses validation samples, and they have none.
        """
        program = self.program
        new_clients = program.runs.algorithm.prepare(new_clients)
        new_clients = new_clients.on_devices(program.federation.execution)
        program.runs.algorithm.check_validation(new_clients)
        return program.personalize(self.at_rest, self._last(), on_devices(new_clients))

    def _last(self) -> int:
        """The last round, counted from 0."""
        return (self.program.rounds if self.done is None else self.done) - 1


@jax.jit
def _backbone(runs, federation):
    return over_runs(lambda run, federation: run.begun(federation).backbone, runs, federation)
