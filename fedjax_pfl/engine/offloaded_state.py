"""Simulation with client state in host memory: `client_state="host"`.

Under sampling a round needs only the rows of its cohort, M of N.

- A `HostStore` holds every leaf [N, ...] that clients keep (`structs.per_client`), except leaves
  with a few numbers a client: these stay on the device, as does the state of the server and of
  pairs of clients. Of a stack made by `ctx.replicate` it holds one row until others are written.
- Cohorts depend only on the seed and the round, so the host knows the next one. While a round runs,
  the host reads the next cohort's rows and samples; rows of clients that are in both cohorts come
  from the running round (`_merged`). It writes a round's rows while the next round runs.
- Rounds and models are those of `compiled`, with rows [M, ...] in place of stacks [N, ...]
  (`state_sharding.PartialStates`). An algorithm sees them as `trees.PartialLeaf`, for which
  `cohort.gather` and `scatter` work. It declares whose rows a round needs (`Algorithm.reads`): if
  it compares with other clients' models, these are read block by block during the round
  (`aggregation.streamed`, `state_store.Reader`); if it trains or changes all clients, it is
  refused. A need that is not declared fails while it is traced: nothing is computed from too few
  rows.
- Samples are on the host too and move with the rows (`HostData`).
- Each process keeps the rows and samples (`process_local_data`) of its own clients. The rows of a
  cohort are combined on the devices (`execution.host_rows`) and returned to every process, which
  writes its own.
- Models are scored and returned in blocks of clients.

Results have the same bits as with all state on the device where clients run one after the other
(`client_execution="map"`), and their checkpoints can be continued either way.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.engine import memory, state_store
from fedjax_pfl.engine.compiled import Chunk, advance, cohort_rows, first_leaves, models, scores
from fedjax_pfl.engine.host_states import HostStates
from fedjax_pfl.engine.offloaded_needs import ONE_ROUND, OffloadedNeeds
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.state_sharding import PartialStates, unsharded_metrics
from fedjax_pfl.engine.state_store import HostStore
from fedjax_pfl.execution.host_rows import combined, on_hosts
from fedjax_pfl.execution.mesh import CLIENTS, RUNS, place, rows_of
from fedjax_pfl.execution.processes import is_distributed, lost_process_errors, readable
from fedjax_pfl.federation.data_sharding import place_on_devices
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.process_local_data import on_all_devices, process_local
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Stack, State, Tree


class _RoundInput(NamedTuple):
    """Input of a round: its clients [R, M], their rows, and the federation with samples."""

    clients: np.ndarray
    rows: list[Any]
    federation: Federation


@dataclass(frozen=True)
class OffloadedProgram(OffloadedNeeds):
    """A program with per-client state on the host.

    With several processes, collectives of the exchange between hosts and of a running program must
    not overlap: processes could begin them in different orders.

    Attributes:
      folder: where a file may be made, or None for the system's.
      limit: bytes of clients' state that memory may hold.
    """

    folder: Path | None = None
    limit: float = float("inf")

    def _put_rows(self, leaves: list[np.ndarray]) -> list[jax.Array]:
        """Put rows [R, K, ...] on the devices; each process provides its own."""
        if is_distributed():
            return jax.block_until_ready(combined(leaves, self.mesh, RUNS, CLIENTS))
        return self.put(leaves, RUNS, CLIENTS)

    def _with_samples(self, clients: np.ndarray, splits: tuple, most: int) -> Federation:
        """Return the federation with samples of some clients; each process provides its own."""
        data = self.data.of(clients, splits, most)
        if self.data.own is None:
            return replace(self.shell, data=self.put(data))
        others = self.put(replace(data, samples=None, labels=None))
        both = on_all_devices(data, self.data.own)
        data = replace(others, samples=both.samples, labels=both.labels)
        return replace(self.shell, data=jax.block_until_ready(data))

    # Rounds.

    def start(self) -> HostStates:
        """Return the states before the first round.

        Raises:
          OutputError: there is no room for a file that is needed.
        """
        device, first = first_leaves(
            self.runs, self.shell, np.int32(self.rounds), layout=self.layout
        )
        written = self.federation.participation.cohort_size * self.rounds
        clients = self.federation.num_clients
        store = HostStore(on_hosts(first), clients, written, self.folder, self.limit)
        return HostStates(self.layout, device, store)

    def advance(self, states: HostStates, t: int, length: int) -> Chunk:
        """Run rounds as `Program.advance` does."""
        with lost_process_errors():
            return self._advance(states, t, length) if length else self._compiled(states, t)

    def _compiled(self, states: HostStates, t: int) -> Chunk:
        """Compile the programs without running a round."""
        with self.as_declared():
            chunk = self._round(states, self._fetched(states.store, self._cohorts(t)), t, 0)
            states = states._replace(device=chunk.states.device)
            if self.scored != ():
                self._scores(states, t, blocks=1)
        return Chunk(states, {**chunk.buffers, "scores": self.unscored}, chunk.matrices)

    def _advance(self, states: HostStates, t: int, length: int) -> Chunk:
        store, waiting, measured, matrices = states.store, None, [], None
        cohort = self._fetched(store, self._cohorts(t))
        for now in range(t, t + length):
            following = self._cohorts(now + 1) if now + 1 < t + length else None
            if waiting is not None and self.reads_others:
                store.write(*waiting)
                waiting = None
            after, buffers, matrices = self._round(states, cohort, now, 1)
            states = states._replace(device=after.device)
            if waiting is not None:  # the rows of the round before, while this one runs
                store.write(*waiting)
            waiting, scored = (cohort.clients, after.rows), self.unscored
            if (now + 1) % self.eval_every == 0 or now + 1 == self.rounds:
                store.write(*waiting)
                waiting, scored = None, self._scores(states, now)
            if following is not None:
                cohort = self._fetched(store, following, waiting)
            if is_distributed() and waiting is not None:  # no overlapping collectives
                store.write(*waiting)
                waiting = None
            measured.append({**buffers, "scores": {n: x[:, None] for n, x in scored.items()}})
        if waiting is not None:
            store.write(*waiting)
        jax.block_until_ready(states.device)
        measured, matrices = readable((measured, matrices))
        whole = [unsharded_metrics(one, matrices, self.federation) for one in measured]
        buffers = jax.tree.map(
            lambda *leaves: np.concatenate(leaves, axis=1), *(one for one, _ in whole)
        )
        return Chunk(states, buffers, whole[0][1])

    def _round(self, states: HostStates, cohort: _RoundInput, t: int, length: int) -> Chunk:
        """Start at most one round, of a cohort whose rows are donated."""
        rows = self._partial(states, cohort.rows, cohort.clients.shape[1])
        numbers = map(np.int32, (t, length, self.rounds, self.eval_every))
        return advance(rows, self.runs, cohort.federation, *numbers, **ONE_ROUND)

    def _partial(self, states: HostStates, rows: list[Any], clients: int) -> PartialStates:
        """Return the states' part for programs, with rows [R, K, ...] of some clients."""
        address = self.address(states.store.number)
        return PartialStates(states.device, rows, address, self.layout, clients)

    def _cohorts(self, t: int) -> np.ndarray:
        """Return the clients of each run's cohort, int32 [R, M]."""
        return np.asarray(readable(cohort_rows(self.runs, self.shell, np.int32(t))))

    def _fetched(self, store: HostStore, clients: np.ndarray, waiting: Any = None) -> _RoundInput:
        """Start moving a round's input to the devices.

        Args:
          waiting: (clients [R, M], rows [R, M, ...]) that a round has made and the store does not
            have yet.
        """
        skip = at = None
        if waiting is not None:
            same = clients[:, :, None] == waiting[0][:, None, :]
            skip, at = same.any(-1), np.where(same.any(-1), same.argmax(-1), -1).astype(np.int32)
        rows = store.read(clients, skip)
        if is_distributed():  # no overlapping collectives
            jax.block_until_ready(() if waiting is None else waiting[1])
        rows = self._put_rows(rows)
        if waiting is not None:
            rows = _merged(rows, waiting[1], at, mesh=self.mesh)
        if is_distributed():
            jax.block_until_ready(rows)
        return _RoundInput(
            clients, rows, self._with_samples(clients, self.round_splits, self.members)
        )

    # Models and scores, by blocks of clients.

    def _by_blocks(
        self,
        fn: Callable[..., Any],
        states: HostStates,
        t: int,
        clients: np.ndarray,
        splits: tuple,
        **options: Any,
    ) -> Iterator[Any]:
        """Return a program's results for blocks of `clients` [K], prefetching one block.

        The last block is filled up with copies of its last client.
        """
        width, ahead = self.width, None
        for start in range(0, len(clients), width):
            at = clients[np.minimum(np.arange(start, start + width), len(clients) - 1)]
            rows = states.store.read(np.broadcast_to(at, (self.num_runs, width)))
            block = self._partial(states, self._put_rows(rows), width)
            federation = self._with_samples(at, splits, width)
            numbers = np.int32(t), np.int32(self.rounds)
            result = fn(block, self.runs, federation, *numbers, at, **options)
            if is_distributed():  # no overlapping collectives
                jax.block_until_ready(result)
            if ahead is not None:
                yield jax.device_get(ahead)
            ahead = readable(result)
        if ahead is not None:
            yield jax.device_get(ahead)

    def _scores(
        self, states: HostStates, t: int, blocks: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return scores [R, N] after round `t`, or only of the first blocks."""
        result = {name: nobody.copy() for name, nobody in self.unscored.items()}
        everyone = range(self.federation.num_clients)
        clients = np.asarray(everyone if self.scored is None else self.scored, np.int32)
        clients = clients if blocks is None else clients[: blocks * self.width]
        parts = self._by_blocks(scores, states, t, clients, self.scored_splits, adapt=self.adapt)
        for number, part in enumerate(parts):
            at = clients[number * self.width : (number + 1) * self.width]
            for name, value in part.items():
                result[name][:, at] = value[:, : len(at)]
        return result

    def models(self, states: HostStates, t: int, rows: np.ndarray) -> dict[str, Any]:
        """Return models on the host; see `Program.models`."""
        rows = np.asarray(rows, np.int32)
        parts = list(self._by_blocks(models, states, t, rows, self.model_splits))

        def one(*models):
            if isinstance(models[0], Broadcast):
                return models[0]
            return jax.tree.map(lambda *xs: np.concatenate(xs, axis=1)[:, : len(rows)], *models)

        return {name: one(*(part[name] for part in parts)) for name in parts[0]}

    def personalize(self, states: HostStates, t: int, new_clients: Federation) -> Stack:
        """Return models of new clients, with all state on the device; see `Program.personalize`."""
        return self._device_program().personalize(states.to_host(), t, new_clients)

    def backbone(self, states: HostStates, t: int) -> Tree | None:
        """Return the frozen leaves, with all state on the device; see `Program.backbone`."""
        return self._device_program().backbone(states.to_host(), t)

    def _device_program(self) -> Program:
        """Return the same simulation with all state and samples on the devices."""
        values = {name: getattr(self, name) for name in Program.__dataclass_fields__}
        values["federation"] = place_on_devices(self.federation)
        return Program(**values)

    def to_host(self, states: HostStates) -> State:
        """Return all states on the host; see `Program.to_host`."""
        return states.to_host()

    def of_clients(self, states: HostStates) -> HostStates:
        """Return the states unchanged, as they have no padding."""
        return states

    def saved(self, states: HostStates) -> dict[str, Any]:
        """Return the states' part for a checkpoint; see `Program.saved`."""
        return states.saved()

    def restored(self, trees: Mapping[str, list[np.ndarray]], like: HostStates) -> HostStates:
        """Return the states of a checkpoint; see `Program.restored`."""
        states = self.start().restored(trees)
        return states._replace(device=self.put(states.device, RUNS))


def offloaded_program(program: Program, folder: Path | None = None) -> OffloadedProgram:
    """Return the same simulation with per-client state in host memory.

    Raises:
      InputError: the algorithm or the participation does not allow it.
    """
    fields = {name: getattr(program, name) for name in Program.__dataclass_fields__}
    fields["federation"] = replace(program.federation, data=process_local(program.federation.data))
    limit = (memory.physical() or float("inf")) * state_store.MEMORY
    moved = OffloadedProgram(**fields, folder=folder, limit=limit)
    moved.check()
    return moved


@partial(jax.jit, static_argnames=("mesh",), donate_argnums=(0,))
def _merged(coming, done, at, mesh):
    """Replace rows [R, M, ...] by the previous round's where `at` [R, M] is not -1."""
    coming, done = rows_of((coming, done), mesh, at.shape[1], RUNS, CLIENTS)

    def one(new, made, at):
        known = (at >= 0).reshape(at.shape + (1,) * (new.ndim - 1))
        return jnp.where(known, made[jnp.maximum(at, 0)], new)

    merged = jax.tree.map(lambda new, made: jax.vmap(one)(new, made, at), coming, done)
    return place(merged, mesh, RUNS, CLIENTS)
