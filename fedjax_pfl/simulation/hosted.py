"""A simulation whose clients keep their state in host memory: `client_state="host"`.

The design. A round under sampling needs the rows of its cohort alone, M of N. Then

- every leaf [N, ...] that clients keep (`structs.per_client`) lies in a `HostStore`, but for those
  of a few numbers a client, which stay on the device, with what the server and pairs of clients
  keep. Rows that nobody has written yet are one row on the host (`first_rows`), not N;
- cohorts depend on the seed and the round alone, so the host knows the next one. While a round
  runs, it reads that one's rows and samples; of clients that are in both, the program takes the
  rows that the round has just made (`host_programs.merged`). Then, while the next round runs, the
  host writes those to the store;
- the program of a round is that of `program._advance`, with rows [M, ...] in place of stacks
  [N, ...]. An algorithm sees them as `trees.Fetched`: `cohort.gather` and `scatter` work, and
  whatever needs other rows fails while it is traced. Nothing is declared, and nothing can be
  computed from less than it needs: an algorithm that reads all clients' models is refused;
- samples lie on the host too, and go with the rows (`HostData`); local training and scoring ask
  `FederatedData.check_there`;
- models are scored, and returned, by blocks of as many clients as a program with all state scores
  at a time.

Results have the same bits as with all state on the device where clients run one after the other
(`client_execution="map"`), and their checkpoints can be continued either way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.errors import InputError
from fedjax_pfl.execution.mesh import AXIS, RUNS, place
from fedjax_pfl.execution.processes import several
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.simulation import host_programs as programs
from fedjax_pfl.simulation import host_reads, host_store, memory
from fedjax_pfl.simulation.host_data import SPLITS, HostData
from fedjax_pfl.simulation.host_programs import Layout
from fedjax_pfl.simulation.host_store import HostStore, whole_leaves
from fedjax_pfl.simulation.memory import BESIDE, Memory, nbytes, peak
from fedjax_pfl.simulation.program import Chunk, Lowered, Program
from fedjax_pfl.structs import Broadcast, by_field
from fedjax_pfl.typing import Device, Rows, Stack, State, Tree

SMALL = 4096  # bytes of a client's row of a leaf that stays on the device


class HostedStates(NamedTuple):
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
        trees = {name: jax.tree.leaves(tree) for name, tree in self.saved().items()}
        return jax.tree.unflatten(self.layout.tree, map(np.asarray, whole_leaves(trees)))

    def saved(self) -> dict[str, Any]:
        """The leaves by name; of those on the host, the rows that some round has written."""
        touched, rows = self.store.saved()
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
class HostedProgram(Program):
    """A program whose per-client state lies on the host.

    Attributes:
      folder: where a file may be made, or None for the system's.
      limit: bytes of what clients keep that memory may hold.
    """

    folder: Path | None = None
    limit: float = float("inf")

    # What does not change from round to round.

    @cached_property
    def _shapes(self) -> State:
        total = np.int32(self.rounds)

        def begun(runs, federation):
            return jax.vmap(partial(programs.begin, federation=federation, total=total))(runs)

        return jax.eval_shape(begun, self.runs, self.federation)

    @cached_property
    def layout(self) -> Layout:
        def hosted(value: Tree, axes: int) -> Tree:
            def one(leaf):
                row = leaf.size // max(self.num_runs * self.federation.num_clients, 1)
                known = not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
                return axes == 1 and known and row * leaf.dtype.itemsize > SMALL

            return jax.tree.map(one, value)

        flags = by_field(hosted, self._shapes)
        return Layout(jax.tree.structure(self._shapes), tuple(jax.tree.leaves(flags)))

    @cached_property
    def _data(self) -> HostData:
        return HostData(self.federation.data)

    @cached_property
    def _shell(self) -> Federation:
        """The federation without samples, on the device."""
        return self._put(replace(self.federation, data=self._data.shell))

    def _put(self, tree: Tree, *lead: str | None) -> Tree:
        """Arrays on the devices, as `mesh.place` puts them."""
        mesh = programs.mesh(self.federation)
        return jax.device_put(tree) if mesh.size == 1 else place(tree, mesh, *lead)

    @property
    def _members(self) -> int:
        """The most clients in the cohorts of one round."""
        cohort = self.federation.participation.cohort_size
        return min(self.num_runs * cohort, self.federation.num_clients)

    @property
    def _width(self) -> int:
        """Clients that are scored at once."""
        federation, count = self.federation, self.federation.num_clients
        execution, trained = federation.execution, federation.participation.cohort_size
        if execution.chunk == 0:  # all clients side by side would be all state
            execution = replace(execution, chunk=trained)
        count = count if self.scored is None else max(len(self.scored), 1)
        return execution.width(count, trained)

    # What programs are traced with, in shapes.

    def _row_shapes(self, count: int) -> list[jax.ShapeDtypeStruct]:
        return [
            jax.ShapeDtypeStruct((leaf.shape[0], count, *leaf.shape[2:]), leaf.dtype)
            for leaf in self.layout.parted(self._shapes)[1]
        ]

    def _round_operands(self, federation: Federation) -> tuple:
        rows = self._row_shapes(federation.participation.cohort_size)
        numbers = np.int32(0), np.int32(1), np.int32(self.rounds)
        at = host_reads.address(None, self.num_runs)
        return self.layout.parted(self._shapes)[0], rows, self.runs, at, federation, *numbers

    def _block_operands(self, federation: Federation) -> tuple:
        clients = jax.ShapeDtypeStruct((self._width,), np.int32)
        kept, rows = self.layout.parted(self._shapes)[0], self._row_shapes(self._width)
        at, numbers = host_reads.address(None, self.num_runs), (np.int32(0), np.int32(self.rounds))
        return kept, rows, self.runs, at, clients, federation, *numbers

    def _splits(self, fn: Any, operands: tuple, **options: Any) -> tuple[str, ...]:
        """The splits whose samples a program uses."""
        traced = fn.trace(*operands, **options)
        jaxpr = traced.jaxpr.jaxpr
        used = {id(v) for equation in jaxpr.eqns for v in equation.invars}
        paths = jax.tree_util.tree_flatten_with_path(operands)[0]
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        asked = {name for v, name in zip(jaxpr.invars, names, strict=True) if id(v) in used}
        return tuple(s for s in SPLITS if any(n.endswith(f".data.{s}.index") for n in asked))

    @cached_property
    def _round_splits(self) -> tuple[str, ...]:
        return self._splits(
            programs.one_round, self._round_operands(self.federation), layout=self.layout
        )

    @cached_property
    def _scored_splits(self) -> tuple[str, ...]:
        operands = self._block_operands(self.federation)
        return self._splits(programs.scores, operands, layout=self.layout, extra=self.adapt)

    @cached_property
    def _reads(self) -> bool:
        """Whether a round reads rows of others while it runs."""
        operands = self._round_operands(self.federation)
        traced = programs.one_round.trace(*operands, layout=self.layout)
        return host_reads.reads(traced.jaxpr.jaxpr)

    def check(self) -> None:
        """Raises `InputError` where a round, or scoring, needs more than its clients' state."""
        own = type(self.runs.algorithm).name or type(self.runs.algorithm).__name__
        federation = self.federation
        if several():
            raise InputError(
                "client_state='host' is for one process, and these are several: take "
                "client_state='device'."
            )
        if federation.participation.cohort_size == federation.num_clients:
            raise InputError(
                "client_state='host' keeps what a round's clients need on the device, and here "
                "these are all clients: take a participation below 1, or client_state='device'."
            )
        for asking in ("_round_splits", "_scored_splits"):
            try:
                getattr(self, asking)
            except (TypeError, AttributeError, ValueError) as error:
                if "Fetched" not in str(error):
                    raise
                what = "samples" if "samples" in str(error) else "models or other state"
                when = "a round" if asking == "_round_splits" else "scoring"
                raise InputError(
                    f"{own} needs {what} of clients that do not take part, in {when}, so they "
                    "can't stay in host memory: take client_state='device'."
                ) from error

    def memory(self) -> Memory | None:
        """See `Program.memory`; the device's, with two cohorts there."""
        execution, found = self.federation.execution, []
        platform, devices, data = execution.platform, execution.devices, self._data
        both = (
            (programs.one_round, self._round_operands, self._round_splits, self._members, {}),
            (
                programs.scores,
                self._block_operands,
                self._scored_splits,
                self._width,
                {"extra": self.adapt},
            ),
        )
        for fn, operands, splits, clients, options in both:
            rows = np.zeros(1, np.int64)
            federation = replace(self.federation, data=data.of(rows, splits, clients))
            given = operands(federation)
            traced = fn.trace(*given, layout=self.layout, **options)
            state = nbytes(given[:2], platform)
            count = len(jax.tree.leaves(given[:2]))
            jaxpr = traced.jaxpr.jaxpr
            try:
                most = peak(jaxpr, frozenset(jaxpr.invars[:count]), devices, platform)
            except Exception:  # as in `Program.memory`, which warns
                return None
            working = round(max(most - state, 0) * BESIDE.get(platform, 1))
            held = devices * nbytes(given[0], platform) + 2 * nbytes(given[1], platform)
            pool = nbytes((federation.data.samples, federation.data.labels), platform)
            found.append(Memory(devices * (nbytes(federation, platform) + pool), held, working))
        return max(found, key=lambda one: one.total)

    def lowered(self, devices: Sequence[Device]) -> Lowered:
        raise InputError("A plan is made of programs with client_state='device'.")

    # Running.

    def start(self) -> HostedStates:
        """The states before the first round.

        Raises:
          OutputError: there is no room for a file that is needed.
        """
        kept, first = programs.first_leaves(
            self.runs, self._shell, np.int32(self.rounds), layout=self.layout
        )
        members = self.federation.participation.cohort_size * self.rounds
        clients = self.federation.num_clients
        first = [np.asarray(leaf) for leaf in first]
        store = HostStore(first, clients, members, self.folder, self.limit)
        return HostedStates(self.layout, self._put(kept, RUNS), store)

    def advance(self, states: HostedStates, t: int, length: int) -> Chunk:
        """See `Program.advance`."""
        kept, store = states.kept, states.store
        at = host_reads.address(store, self.num_runs)
        measured, matrices, waiting = [], None, None
        coming = self._fetched(store, self._cohorts(t))
        if length == 0:
            return self._compiled(states, coming)
        for now in range(t, t + length):
            following = self._cohorts(now + 1) if now + 1 < t + length else None
            if self._reads and waiting is not None:
                store.put(*waiting)
                waiting = None
            numbers = np.int32(now), np.int32(1), np.int32(self.rounds)
            kept, rows, one, matrices = programs.one_round(
                kept, coming.rows, self.runs, at, coming.federation, *numbers, layout=self.layout
            )
            if waiting is not None:  # the rows of the round before, while this one runs
                store.put(*waiting)
            waiting = coming.clients, rows
            scores = self._unscored
            if (now + 1) % self.eval_every == 0 or now + 1 == self.rounds:
                store.put(*waiting)
                waiting = None
                scores = self._score(kept, store, now)
            if following is not None:
                coming = self._fetched(store, following, waiting)
            measured.append({**one, "scores": scores})
        if waiting is not None:
            store.put(*waiting)
        jax.block_until_ready(kept)
        buffers = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *measured)
        return Chunk(HostedStates(self.layout, kept, store), buffers, matrices)

    def _compiled(self, states: HostedStates, coming: _Fetched) -> Chunk:
        """No round: the programs are compiled, and the measurements have their structure alone."""
        operands = self._round_operands(coming.federation)
        given = (states.kept, coming.rows, *operands[2:])
        compiled = programs.one_round.lower(*given, layout=self.layout)
        compiled.compile()
        _, _, one, matrices = compiled.out_info
        if self.scored != ():
            self._score(states.kept, states.store, 0, blocks=1)
        measured = {**one, "scores": self._unscored}
        buffers = jax.tree.map(lambda s: np.zeros((s.shape[0], 0, *s.shape[1:]), s.dtype), measured)
        return Chunk(states, buffers, matrices)

    def _cohorts(self, t: int) -> np.ndarray:
        """int32 [R, M], the clients of each run's cohort."""
        return np.asarray(programs.cohorts(self.runs, self._shell, np.int32(t)))

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
        rows = self._put(store.take(clients, skip), RUNS, AXIS)
        if waiting is not None:
            rows = programs.merged(rows, waiting[1], at, mesh=programs.mesh(self.federation))
        data = self._data.of(clients, self._round_splits, self._members)
        return _Fetched(clients, rows, replace(self._shell, data=self._put(data)))

    # Models, block by block.

    def _blocks(self, store: HostStore, wanted: np.ndarray, splits: tuple) -> Iterator[tuple]:
        """(the block's clients [k], their rows, the federation with their samples).

        The last block is filled up with copies of its last client.
        """
        width = self._width
        for start in range(0, len(wanted), width):
            at = wanted[np.minimum(np.arange(start, start + width), len(wanted) - 1)]
            clients = np.broadcast_to(at, (self.num_runs, width))
            rows = self._put(store.take(clients), RUNS, AXIS)
            data = self._put(self._data.of(at, splits, width))
            yield at, rows, replace(self._shell, data=data)

    def _by_blocks(
        self, fn: Callable, states: tuple, t: int, wanted: Rows, splits: tuple, **options: Any
    ) -> Iterator[Any]:
        """Results of a program for blocks of clients, on the host; one block is ahead."""
        kept, store = states
        address = host_reads.address(store, self.num_runs)
        numbers, ahead = (np.int32(t), np.int32(self.rounds)), None
        for at, rows, federation in self._blocks(store, np.asarray(wanted, np.int32), splits):
            given = kept, rows, self.runs, address, at, federation, *numbers
            found = fn(*given, layout=self.layout, **options)
            if ahead is not None:
                yield jax.device_get(ahead)
            ahead = found
        if ahead is not None:
            yield jax.device_get(ahead)

    @cached_property
    def _unscored(self) -> dict[str, np.ndarray]:
        """What a round that is not scored has."""
        if self.scored == ():
            return {}
        operands, clients = self._block_operands(self.federation), self.federation.num_clients
        shapes = programs.scores.eval_shape(*operands, layout=self.layout, extra=self.adapt)
        return {n: np.full((s.shape[0], clients), np.nan, s.dtype) for n, s in shapes.items()}

    def _score(self, kept, store, now: int, blocks: int | None = None) -> dict[str, np.ndarray]:
        """Scores [R, N] after round `now`; of the first blocks alone, if so many are given."""
        scores = {name: nobody.copy() for name, nobody in self._unscored.items()}
        everyone = np.arange(self.federation.num_clients, dtype=np.int32)
        wanted = everyone if self.scored is None else np.asarray(self.scored, np.int32)
        wanted = wanted if blocks is None else wanted[: blocks * self._width]
        if not len(wanted):
            return scores
        found = self._by_blocks(
            programs.scores, (kept, store), now, wanted, self._scored_splits, extra=self.adapt
        )
        for number, part in enumerate(found):
            at = wanted[number * self._width : (number + 1) * self._width]
            for name, value in part.items():
                scores[name][:, at] = value[:, : len(at)]
        return scores

    def models(self, states: HostedStates, t: Any, rows: np.ndarray) -> dict[str, Any]:
        """See `Program.models`; on the host."""
        operands = self._block_operands(self.federation)
        splits = self._splits(programs.block_models, operands, layout=self.layout)
        pair = states.kept, states.store
        parts = list(self._by_blocks(programs.block_models, pair, t, rows, splits))

        def one(*models):
            if isinstance(models[0], Broadcast):
                return models[0]
            return jax.tree.map(
                lambda *leaves: np.concatenate(leaves, axis=1)[:, : len(rows)], *models
            )

        return {name: one(*(part[name] for part in parts)) for name in parts[0]}

    def personalize(self, states: HostedStates, t: Any, new_clients: Federation) -> Stack:
        """See `Program.personalize`; for this alone all state goes to the device."""
        return super().personalize(states.whole(), t, new_clients)

    # Checkpoints.

    def saved(self, states: HostedStates) -> dict[str, Any]:
        """See `Program.saved`."""
        return states.saved()

    def restored(self, trees: Mapping[str, list[np.ndarray]], like: HostedStates) -> HostedStates:
        """See `Program.restored`."""
        begun, leaves = self.start(), trees["states"]
        kept = [x for x, hosted in zip(leaves, self.layout.hosted, strict=True) if not hosted]
        same = "hosted" in trees and [*trees["hosted"][1]] == [*np.flatnonzero(self.layout.hosted)]
        if same:
            touched = np.asarray(trees["hosted"][0])
        else:
            leaves = whole_leaves(trees)
            touched = np.arange(self.federation.num_clients)
        rows = [x for x, hosted in zip(leaves, self.layout.hosted, strict=True) if hosted]
        for start in range(0, len(touched), 100):
            at = touched[start : start + 100]
            values = [leaf[:, start : start + 100] for leaf in rows]
            begun.store.put(np.broadcast_to(at, (self.num_runs, len(at))), values)
        return HostedStates(self.layout, self._put(kept, RUNS), begun.store)


def hosted(program: Program, folder: Path | None = None) -> HostedProgram:
    """The same simulation with what clients keep in host memory.

    Raises:
      InputError: it can't be; see `HostedProgram.check`.
    """
    fields = {name: getattr(program, name) for name in Program.__dataclass_fields__}
    limit = (memory.physical() or float("inf")) * host_store.MEMORY
    moved = HostedProgram(**fields, folder=folder, limit=limit)
    moved.check()
    return moved
