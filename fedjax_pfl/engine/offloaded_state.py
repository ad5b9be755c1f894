"""A simulation whose clients keep their state in host memory: `client_state="host"`.

The design. A round under sampling needs the rows of its cohort alone, M of N. Then

- every leaf [N, ...] that clients keep (`structs.per_client`) lies in a `HostStore`, but for those
  of a few numbers a client, which stay on the device, with what the server and pairs of clients
  keep. Of stacks that `ctx.replicate` made, one row is on the host until others are written;
- cohorts depend on the seed and the round alone, so the host knows the next one. While a round
  runs, it reads that one's rows and samples; of clients that are in both, the program takes the
  rows that the round has just made (`host_programs.merged`). Then, while the next round runs, the
  host writes those to the store;
- the program of a round is that of `program._advance`, with rows [M, ...] in place of stacks
  [N, ...]. An algorithm sees them as `trees.Fetched`: `cohort.gather` and `scatter` work. What is
  compared with, or mixed from, other clients' models reads these block by block while it runs
  (`aggregation.streamed`, `host_reads`), and whatever else needs other rows fails while it is
  traced. Nothing is declared, and nothing can be computed from less than it needs: an algorithm
  that trains all clients, or changes their models, is refused;
- samples lie on the host too, and go with the rows (`HostData`); local training and scoring ask
  `FederatedData.check_there`;
- of several processes each keeps the rows (`SharedStore`) and samples (`federation.at_home`) of its
  own clients. A cohort's meet on the devices (`execution.combining`), and rows come back whole to
  every process, which writes its own;
- models are scored, and returned, by blocks of as many clients as a program with all state scores
  at a time (`host_blocks`). What all these programs need is found by tracing (`host_needs`).

Results have the same bits as with all state on the device where clients run one after the other
(`client_execution="map"`), and their checkpoints can be continued either way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_pfl.engine import host_blocks as blocks
from fedjax_pfl.engine import host_lowering, host_reads, host_store, memory
from fedjax_pfl.engine import host_programs as programs
from fedjax_pfl.engine.host_needs import TracedProgram
from fedjax_pfl.engine.host_programs import Layout
from fedjax_pfl.engine.host_shares import SharedStore
from fedjax_pfl.engine.host_store import BLOCK, HostStore, whole_leaves
from fedjax_pfl.engine.lowered import Lowered
from fedjax_pfl.engine.program import Chunk, Program
from fedjax_pfl.execution.combining import on_hosts
from fedjax_pfl.execution.mesh import RUNS
from fedjax_pfl.execution.processes import of_processes, readable, several
from fedjax_pfl.federation.data_sharding import on_devices
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.process_local_data import process_local
from fedjax_pfl.utils.typing import Device, Stack, State


class OffloadedStates(NamedTuple):
    """The states of all runs.

    Attributes:
      layout: see `Layout`.
      kept: leaves on the device, [R, ...].
      store: the others.
    """

    layout: Layout
    kept: list[Any]
    store: HostStore

    def whole(self) -> State:
        """All of it, leaves [R, N, ...], on the host."""
        saved = self.saved(everywhere=True)
        trees = {name: jax.tree.leaves(readable(tree)) for name, tree in saved.items()}
        return jax.tree.unflatten(self.layout.tree, map(np.asarray, whole_leaves(trees)))

    def saved(self, everywhere: bool = False) -> dict[str, Any]:
        """The leaves by name; of those on the host, the rows that some round has written.

        Of several processes the first one has these rows, the others only if `everywhere`.
        """
        touched, rows = self.store.saved(everywhere)
        trees = {"states": self.layout.joined(self.kept, rows)}
        if rows:
            places = np.flatnonzero(self.layout.hosted).astype(np.int32)
            trees["hosted"] = [touched, places, np.int32(self.store.clients)]
            trees["first"] = self.store.first
        return trees


class _Fetched(NamedTuple):
    """The input of a round: its cohort's clients [R, M], their rows, and their samples."""

    clients: np.ndarray
    rows: list[Any]
    federation: Federation


@dataclass(frozen=True)
class OffloadedProgram(TracedProgram):
    """A program whose per-client state lies on the host.

    Attributes:
      folder: where a file may be made, or None for the system's.
      limit: bytes of what clients keep that memory may hold.
    """

    folder: Path | None = None
    limit: float = float("inf")

    def lowered(self, devices: Sequence[Device]) -> Lowered:
        """See `Program.lowered`."""
        return host_lowering.lowered(self, devices)

    def start(self) -> OffloadedStates:
        """The states before the first round.

        Raises:
          OutputError: there is no room for a file that is needed.
        """
        kept, first = programs.first_leaves(
            self.runs, self.shell, np.int32(self.rounds), layout=self.layout
        )
        members = self.federation.participation.cohort_size * self.rounds
        clients = self.federation.num_clients
        make = SharedStore if several() else HostStore
        store = make(on_hosts(first), clients, members, self.folder, self.limit)
        return OffloadedStates(self.layout, kept, store)

    def advance(self, states: OffloadedStates, t: int, length: int) -> Chunk:
        """See `Program.advance`."""
        with of_processes():
            return self._advance(states, t, length)

    def _advance(self, states: OffloadedStates, t: int, length: int) -> Chunk:
        kept, store = states.kept, states.store
        at = host_reads.address(store, self.num_runs)
        measured, matrices, waiting = [], None, None
        coming = self._fetched(store, self._cohorts(t))
        if length == 0:
            return self._compiled(states, coming)
        for now in range(t, t + length):
            following = self._cohorts(now + 1) if now + 1 < t + length else None
            if self.reads and waiting is not None:
                store.put(*waiting)
                waiting = None
            numbers = np.int32(now), np.int32(1), np.int32(self.rounds)
            kept, rows, one, matrices = programs.one_round(
                kept, coming.rows, self.runs, at, coming.federation, *numbers, layout=self.layout
            )
            if waiting is not None:  # the rows of the round before, while this one runs
                store.put(*waiting)
            waiting = coming.clients, rows
            scores = self.unscored
            if (now + 1) % self.eval_every == 0 or now + 1 == self.rounds:
                store.put(*waiting)
                waiting = None
                scores = blocks.scores(self, kept, store, now)
            if following is not None:
                coming = self._fetched(store, following, waiting)
            if several() and waiting is not None:  # now: later programs would come in between
                waiting = waiting[0], on_hosts(waiting[1])
            measured.append({**one, "scores": scores})
        if waiting is not None:
            store.put(*waiting)
        jax.block_until_ready(kept)
        buffers = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *measured)
        return Chunk(OffloadedStates(self.layout, kept, store), buffers, matrices)

    def _compiled(self, states: OffloadedStates, coming: _Fetched) -> Chunk:
        """No round: the programs are compiled, and the measurements have their structure alone."""
        operands = self.round_operands(coming.federation)
        given = (states.kept, coming.rows, *operands[2:])
        compiled = programs.one_round.lower(*given, layout=self.layout)
        compiled.compile()
        _, _, one, matrices = compiled.out_info
        if self.scored != ():
            blocks.scores(self, states.kept, states.store, 0, blocks=1)
        measured = {**one, "scores": self.unscored}
        buffers = jax.tree.map(lambda s: np.zeros((s.shape[0], 0, *s.shape[1:]), s.dtype), measured)
        return Chunk(states, buffers, matrices)

    def _cohorts(self, t: int) -> np.ndarray:
        """int32 [R, M], the clients of each run's cohort."""
        return np.asarray(readable(programs.cohorts(self.runs, self.shell, np.int32(t))))

    def _fetched(self, store: HostStore, clients: np.ndarray, waiting: Any = None) -> _Fetched:
        """Rows and samples of a round's clients, on the device or on the way there.

        Args:
          waiting: (clients [R, M], rows [R, M, ...]) that a round has made and the store does not
            have yet.
        """
        skip = at = None
        if waiting is not None:
            same = clients[:, :, None] == waiting[0][:, None, :]
            skip, at = same.any(-1), np.where(same.any(-1), same.argmax(-1), -1).astype(np.int32)
        rows = store.take(clients, skip)
        data = self.data.of(clients, self.round_splits, self.members)
        if several():  # what they exchange must not meet what the round does
            jax.block_until_ready(() if waiting is None else waiting[1])
        rows = self.put_rows(rows)
        if waiting is not None:
            rows = programs.merged(rows, waiting[1], at, mesh=programs.mesh(self.federation))
        if several():
            jax.block_until_ready(rows)
        return _Fetched(clients, rows, replace(self.shell, data=self.put_data(data)))

    def models(self, states: OffloadedStates, t: Any, rows: np.ndarray) -> dict[str, Any]:
        """See `Program.models`; on the host."""
        return blocks.models(self, states.kept, states.store, t, rows)

    def personalize(self, states: OffloadedStates, t: Any, new_clients: Federation) -> Stack:
        """See `Program.personalize`; for this alone all state and samples go to the device."""
        everything = replace(self, federation=on_devices(self.federation))
        return Program.personalize(everything, states.whole(), t, new_clients)

    def whole(self, states: OffloadedStates) -> State:
        """See `Program.whole`."""
        return states.whole()

    def of_clients(self, states: OffloadedStates) -> OffloadedStates:
        """The states as they are: no row of them fills up."""
        return states

    # Checkpoints.

    def saved(self, states: OffloadedStates) -> dict[str, Any]:
        """See `Program.saved`."""
        return states.saved()

    def restored(
        self, trees: Mapping[str, list[np.ndarray]], like: OffloadedStates
    ) -> OffloadedStates:
        """See `Program.restored`."""
        begun, places = self.start(), np.flatnonzero(self.layout.hosted)
        if "hosted" in trees and [*trees["hosted"][1]] == [*places]:
            leaves, touched = trees["states"], np.asarray(trees["hosted"][0])
            for start in range(0, len(touched), BLOCK):
                at = touched[start : start + BLOCK]
                values = [leaves[place][:, start : start + BLOCK] for place in places]
                begun.store.put(np.broadcast_to(at, (self.num_runs, len(at))), values)
        else:
            leaves = whole_leaves(trees)
            begun.store.put_changed([leaves[place] for place in places])
        kept = [x for x, hosted in zip(leaves, self.layout.hosted, strict=True) if not hosted]
        return OffloadedStates(self.layout, self.put(kept, RUNS), begun.store)


def offloaded_program(program: Program, folder: Path | None = None) -> OffloadedProgram:
    """The same simulation with what clients keep in host memory.

    Raises:
      InputError: it can't be; see `OffloadedProgram.check`.
    """
    fields = {name: getattr(program, name) for name in Program.__dataclass_fields__}
    fields["federation"] = replace(program.federation, data=process_local(program.federation.data))
    limit = (memory.physical() or float("inf")) * host_store.MEMORY
    moved = OffloadedProgram(**fields, folder=folder, limit=limit)
    moved.check()
    return moved
