"""Simulation with client state in host memory: `client_state="host"`.

Under sampling a round needs only the rows of its cohort, M of N.

- A `HostStore` holds every leaf [N, ...] that clients keep (`structs.per_client`), except leaves
  with a few numbers a client: these stay on the device, as does the state of the server and of
  pairs of clients. Of a stack made by `ctx.replicate` it holds one row until others are written.
- Cohorts depend only on the seed and the round, so the host knows the next one. While a round runs,
  the host reads the next cohort's rows and samples; rows of clients that are in both cohorts come
  from the running round (`host_transfers.merged`). It writes a round's rows while the next one
  runs.
- Rounds and models are those of `compiled`, with rows [M, ...] in place of stacks [N, ...]
  (`state_sharding.PartialStates`). An algorithm sees them as `trees.PartialLeaf`, for which
  `cohort.gather` and `scatter` work. Whose rows a round needs is found by tracing it: if it
  compares with other clients' models, these are read block by block during the round
  (`aggregation.streamed`, `state_store.Reader`); if it trains or changes all clients, it is
  refused.
- Samples are on the host too and move with the rows (`host_transfers`).
- Each process keeps the rows and samples (`process_local_data`) of its own clients. The rows of a
  cohort are combined on the devices (`execution.host_rows`) and returned to every process, which
  writes its own.
- Models are scored and returned in blocks of clients.

Results have the same bits as with all state on the device where clients run one after the other
(`client_execution="map"`), and their checkpoints can be continued either way.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import jax
import numpy as np

from fedjax_pfl.engine import host_reads, state_store
from fedjax_pfl.engine.compiled import (
    Chunk,
    advance,
    cohort_rows,
    first_leaves_of,
    initial_state,
    models,
    scores,
)
from fedjax_pfl.engine.host_states import HostStates
from fedjax_pfl.engine.host_transfers import RoundInput, Transfers
from fedjax_pfl.engine.memory import Memory, nbytes, physical
from fedjax_pfl.engine.program import Call, Program
from fedjax_pfl.engine.runs import over_runs
from fedjax_pfl.engine.state_sharding import Layout, PartialStates, unsharded_metrics
from fedjax_pfl.engine.state_store import Address, HostStore
from fedjax_pfl.execution.host_rows import on_hosts
from fedjax_pfl.execution.mesh import CLIENTS, RUNS, place, shapes_on
from fedjax_pfl.execution.processes import count, is_distributed, lost_process_errors, readable
from fedjax_pfl.federation.data_sharding import place_on_devices
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.process_local_data import process_local
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Stack, State, Tree

ONE_ROUND = {"capacity": 1, "adapt": None, "scored": ()}  # static arguments of its program


@dataclass(frozen=True)
class HostProgram(Program):
    """A program with per-client state and samples on the host, and on the devices those in use.

    Attributes:
      reads: whose rows a round reads: those of the "cohort", or also of "others".
      models_read_samples: whether models read samples of their clients.

    With several processes, collectives of the exchange between hosts and of a running program must
    not overlap: processes could begin them in different orders.
    """

    small: ClassVar[int] = 4096  # bytes of a client's row of a leaf that stays on the device

    reads: str = "cohort"
    models_read_samples: bool = False

    @classmethod
    def of(cls, program: Program) -> "HostProgram":
        """Return the same simulation with per-client state in host memory.

        Raises:
          InputError: the algorithm or the participation does not allow it.
        """
        data = process_local(program.federation.data)
        moved = cls(**vars(replace(program, federation=replace(program.federation, data=data))))
        return host_reads.with_rows_read(moved)

    @cached_property
    def shapes(self) -> State:
        """The shapes of the states, without padding."""
        total = np.int32(self.rounds)
        return jax.eval_shape(partial(over_runs, initial_state), self.runs, self.federation, total)

    @cached_property
    def layout(self) -> Layout:
        rows = max(self.num_runs * self.federation.num_clients, 1)
        return Layout.of(self.shapes, rows, self.small)

    @cached_property
    def transfers(self) -> Transfers:
        return Transfers(self.federation)

    @cached_property
    def splits(self) -> host_reads.Splits:
        return host_reads.splits_read(self)

    @property
    def members(self) -> int:
        """The most clients in the cohorts of one round."""
        cohort = self.federation.participation.cohort_size
        return min(self.num_runs * cohort, self.federation.num_clients)

    @property
    def width(self) -> int:
        """Clients that are scored at once."""
        clients = self.federation.num_clients
        execution, trained = self.federation.execution, self.federation.participation.cohort_size
        if execution.max_lanes == 0:  # all clients side by side would be all state
            execution = replace(execution, max_lanes=trained)
        scored = clients if self.scored is None else max(len(self.scored), 1)
        return execution.width(scored, trained)

    def _partial(
        self, device: list[Any], rows: list[Any], clients: int, store: int = 0
    ) -> PartialStates:
        """Return states for programs, with rows [R, K, ...] of some clients, or their shapes."""
        runs = np.arange(self.num_runs, dtype=np.int32)
        address = Address(np.full_like(runs, store), runs, self.reads == "others")
        return PartialStates(device, rows, address, self.layout, clients)

    # Shapes of programs.

    def calls(self) -> list[Call]:
        """Return a round, and the scoring of a block; nothing is traced."""
        cohort, zero = self.federation.participation.cohort_size, np.int32(0)
        numbers = zero, zero, np.int32(self.rounds), zero
        clients = cohort, self.members
        one_round = self._call(advance, clients, self.splits.rounds, numbers, **ONE_ROUND)
        scoring = self.call_of_block(scores, self.splits.scores, adapt=self.adapt)
        return [one_round, *[scoring] * (self.scored != ())]

    def call_of_block(self, fn: Any, splits: tuple[str, ...], **options: Any) -> Call:
        """Return a function of a block of clients, such as `models`; nothing is traced."""
        numbers = np.int32(0), np.int32(self.rounds), np.zeros(self.width, np.int32)
        return self._call(fn, (self.width, self.width), splits, numbers, **options)

    def _call(
        self,
        fn: Any,
        clients: tuple[int, int],
        splits: tuple[str, ...],
        numbers: tuple,
        **options: Any,
    ) -> Call:
        """Return a function for (rows, different clients) and their samples."""
        data = self.transfers.data.of(np.zeros(1, np.int64), splits, clients[1])
        federation, states = replace(self.federation, data=data), self._shapes_of(clients[0])
        given, *others = shapes_on(None, (states, self.runs, federation, *numbers))
        mesh = self.transfers.mesh
        device, rows = place(given.device, mesh, RUNS), place(given.rows, mesh, RUNS, CLIENTS)
        runs, there, *rest = others
        operands = replace(given, device=device, rows=rows), runs, place(there, mesh), *rest
        devices = self.federation.execution.all_devices
        # Two cohorts; each of several processes gives rows of the size of the cohort.
        copies = 2 + is_distributed() * count()
        state = devices * nbytes(states.device) + copies * nbytes(states.rows)
        pool = nbytes((data.samples, data.labels))
        held = Memory(devices * (nbytes(federation) + pool), state, working=0)
        arguments = devices * nbytes((states.device, federation)) + nbytes(states.rows)
        return Call(partial(fn.trace, *operands, **options), held, arguments)

    def _shapes_of(self, clients: int) -> PartialStates:
        """Return shapes of states with rows of `k` clients on the devices."""
        device, rows = self.layout.parted(self.shapes)
        rows = [jax.ShapeDtypeStruct((x.shape[0], clients, *x.shape[2:]), x.dtype) for x in rows]
        return self._partial(device, rows, clients)

    @cached_property
    def unscored(self) -> dict[str, np.ndarray]:
        """The scores [R, N] of a round that is not scored."""
        if self.scored == ():
            return {}
        clients, number = jax.ShapeDtypeStruct((self.width,), np.int32), np.int32(0)
        operands = self._shapes_of(self.width), self.runs, self.federation, number, number, clients
        shapes = scores.eval_shape(*operands, adapt=self.adapt)
        clients = self.federation.num_clients
        return {n: np.full((s.shape[0], clients), np.nan, s.dtype) for n, s in shapes.items()}

    # Rounds.

    @property
    def _start(self) -> Any:
        return first_leaves_of(self.federation.execution.platform)

    @property
    def _first_operands(self) -> tuple:
        return self.runs, self.transfers.shell, np.int32(self.rounds)

    def _first_lowered(self) -> jax.stages.Lowered:
        return self._start.lower(*self._first_operands, layout=self.layout)

    def start(self) -> HostStates:
        """Return the states before the first round.

        Raises:
          OutputError: there is no room for a file that is needed.
        """
        device, first = self._start(*self._first_operands, layout=self.layout)
        written = self.federation.participation.cohort_size * self.rounds
        clients = self.federation.num_clients
        limit = (physical() or float("inf")) * state_store.MEMORY
        store = HostStore(on_hosts(first), clients, written, self.folder, limit)
        return HostStates(self.layout, device, store)

    def advance(self, states: HostStates, t: int, length: int) -> Chunk:
        """Run rounds as `Program.advance` does."""
        with lost_process_errors():
            return self._advance(states, t, length) if length else self._compiled(states, t)

    def _compiled(self, states: HostStates, t: int) -> Chunk:
        """Compile the programs without running a round."""
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
            if waiting is not None and self.reads == "others":
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

    def _round(self, states: HostStates, cohort: RoundInput, t: int, length: int) -> Chunk:
        """Start at most one round, of a cohort whose rows are donated."""
        clients, number = cohort.clients.shape[1], states.store.number
        rows = self._partial(states.device, cohort.rows, clients, number)
        numbers = map(np.int32, (t, length, self.rounds, self.eval_every))
        return advance(rows, self.runs, cohort.federation, *numbers, **ONE_ROUND)

    def _cohorts(self, t: int) -> np.ndarray:
        """Return the clients of each run's cohort, int32 [R, M]."""
        return np.asarray(readable(cohort_rows(self.runs, self.transfers.shell, np.int32(t))))

    def _fetched(self, store: HostStore, clients: np.ndarray, waiting: Any = None) -> RoundInput:
        """Start moving a round's input to the devices; see `Transfers.round_input`."""
        splits, members = self.splits.rounds, self.members
        return self.transfers.round_input(store, clients, waiting, splits, members)

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
            rows = self.transfers.rows(rows)
            block = self._partial(states.device, rows, width, states.store.number)
            federation = self.transfers.samples(at, splits, width)
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
        parts = self._by_blocks(scores, states, t, clients, self.splits.scores, adapt=self.adapt)
        for number, part in enumerate(parts):
            at = clients[number * self.width : (number + 1) * self.width]
            for name, value in part.items():
                result[name][:, at] = value[:, : len(at)]
        return result

    def models(self, states: HostStates, t: int, rows: np.ndarray) -> dict[str, Any]:
        """Return models on the host; see `Program.models`."""
        rows = np.asarray(rows, np.int32)
        parts = list(self._by_blocks(models, states, t, rows, self.splits.models))

        def one(*models):
            if isinstance(models[0], Broadcast):
                return models[0]
            return jax.tree.map(lambda *xs: np.concatenate(xs, axis=1)[:, : len(rows)], *models)

        return {name: one(*(part[name] for part in parts)) for name in parts[0]}

    def personalize(self, states: HostStates, t: int, new_clients: Federation) -> Stack:
        """Return models of new clients, with all state on the device; see `Program.personalize`."""
        return Program.personalize(self._on_devices(), states.to_host(), t, new_clients)

    def backbone(self, states: HostStates, t: int) -> Tree | None:
        """Return the frozen leaves, with all state on the device; see `Program.backbone`."""
        return Program.backbone(self._on_devices(), states.to_host(), t)

    def _on_devices(self) -> "HostProgram":
        """Return the program with all samples on the devices."""
        return replace(self, federation=place_on_devices(self.federation))

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
        return states._replace(device=self.transfers.put(states.device, RUNS))
