"""What the programs of `offloaded_state` need: which leaves, clients and samples, and how much
memory.

All of it is found by tracing; nothing is compiled.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.engine import host_programs as programs
from fedjax_pfl.engine import host_reads
from fedjax_pfl.engine.host_programs import Layout
from fedjax_pfl.engine.memory import BESIDE, Memory, nbytes, peak
from fedjax_pfl.engine.program import Program, begin
from fedjax_pfl.execution.combining import combined
from fedjax_pfl.execution.mesh import AXIS, RUNS, place
from fedjax_pfl.execution.processes import count, several
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.host_data import SPLITS, HostData
from fedjax_pfl.federation.process_local_data import on_all_devices
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import by_field
from fedjax_pfl.utils.typing import State, Tree

SMALL = 4096  # bytes of a client's row of a leaf that stays on the device


@dataclass(frozen=True)
class TracedProgram(Program):
    """A program of which tracing shows what its rounds, and its scoring, need of the clients."""

    @cached_property
    def shapes(self) -> State:
        total = np.int32(self.rounds)

        def begun(runs, federation):
            return jax.vmap(partial(begin, federation=federation, total=total))(runs)

        return jax.eval_shape(begun, self.runs, self.federation)

    @cached_property
    def layout(self) -> Layout:
        def hosted(value: Tree, axes: int) -> Tree:
            def one(leaf):
                row = leaf.size // max(self.num_runs * self.federation.num_clients, 1)
                known = not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
                return axes == 1 and known and row * leaf.dtype.itemsize > SMALL

            return jax.tree.map(one, value)

        flags = by_field(hosted, self.shapes)
        return Layout(jax.tree.structure(self.shapes), tuple(jax.tree.leaves(flags)))

    @cached_property
    def data(self) -> HostData:
        return HostData(self.federation.data)

    @cached_property
    def shell(self) -> Federation:
        """The federation without samples, on the device."""
        return self.put(replace(self.federation, data=self.data.shell))

    def put(self, tree: Tree, *lead: str | None) -> Tree:
        """Arrays on the devices, as `mesh.place` puts them."""
        mesh = programs.mesh(self.federation)
        return jax.device_put(tree) if mesh.size == 1 else place(tree, mesh, *lead)

    def put_rows(self, leaves: list[np.ndarray]) -> list[jax.Array]:
        """Rows [R, K, ...] of a store on the devices; of several processes each gives its own."""
        if several():
            return combined(leaves, programs.mesh(self.federation), RUNS, AXIS)
        return self.put(leaves, RUNS, AXIS)

    def put_data(self, data: FederatedData) -> FederatedData:
        """Data of `HostData.of` on the devices; of several processes each gives its own samples."""
        if self.data.own is None:
            return self.put(data)
        others = self.put(replace(data, samples=None, labels=None))
        found = on_all_devices(data, self.data.own)
        return jax.block_until_ready(replace(others, samples=found.samples, labels=found.labels))

    @property
    def members(self) -> int:
        """The most clients in the cohorts of one round."""
        cohort = self.federation.participation.cohort_size
        return min(self.num_runs * cohort, self.federation.num_clients)

    @property
    def width(self) -> int:
        """Clients that are scored at once."""
        federation, count = self.federation, self.federation.num_clients
        execution, trained = federation.execution, federation.participation.cohort_size
        if execution.chunk == 0:  # all clients side by side would be all state
            execution = replace(execution, chunk=trained)
        count = count if self.scored is None else max(len(self.scored), 1)
        return execution.width(count, trained)

    # What programs are traced with, in shapes.

    def row_shapes(self, count: int) -> list[jax.ShapeDtypeStruct]:
        return [
            jax.ShapeDtypeStruct((leaf.shape[0], count, *leaf.shape[2:]), leaf.dtype)
            for leaf in self.layout.parted(self.shapes)[1]
        ]

    def round_operands(self, federation: Federation) -> tuple:
        rows = self.row_shapes(federation.participation.cohort_size)
        numbers = np.int32(0), np.int32(1), np.int32(self.rounds)
        at = host_reads.address(None, self.num_runs)
        return self.layout.parted(self.shapes)[0], rows, self.runs, at, federation, *numbers

    def block_operands(self, federation: Federation) -> tuple:
        clients = jax.ShapeDtypeStruct((self.width,), np.int32)
        kept, rows = self.layout.parted(self.shapes)[0], self.row_shapes(self.width)
        at, numbers = host_reads.address(None, self.num_runs), (np.int32(0), np.int32(self.rounds))
        return kept, rows, self.runs, at, clients, federation, *numbers

    def splits(self, fn: Any, operands: tuple, **options: Any) -> tuple[str, ...]:
        """The splits whose samples a program uses."""
        traced = fn.trace(*operands, **options)
        jaxpr = traced.jaxpr.jaxpr
        used = {id(v) for equation in jaxpr.eqns for v in equation.invars}
        paths = jax.tree_util.tree_flatten_with_path(operands)[0]
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        asked = {name for v, name in zip(jaxpr.invars, names, strict=True) if id(v) in used}
        return tuple(s for s in SPLITS if any(n.endswith(f".data.{s}.index") for n in asked))

    @cached_property
    def round_splits(self) -> tuple[str, ...]:
        return self.splits(
            programs.one_round, self.round_operands(self.federation), layout=self.layout
        )

    @cached_property
    def scored_splits(self) -> tuple[str, ...]:
        operands = self.block_operands(self.federation)
        return self.splits(programs.scores, operands, layout=self.layout, extra=self.adapt)

    @cached_property
    def reads(self) -> bool:
        """Whether a round reads rows of other clients while it runs."""
        operands = self.round_operands(self.federation)
        traced = programs.one_round.trace(*operands, layout=self.layout)
        return host_reads.reads(traced.jaxpr.jaxpr)

    @cached_property
    def unscored(self) -> dict[str, np.ndarray]:
        """What a round that is not scored has."""
        if self.scored == ():
            return {}
        operands, clients = self.block_operands(self.federation), self.federation.num_clients
        shapes = programs.scores.eval_shape(*operands, layout=self.layout, extra=self.adapt)
        return {n: np.full((s.shape[0], clients), np.nan, s.dtype) for n, s in shapes.items()}

    def check(self) -> None:
        """Raises `InputError` where a round, or scoring, needs more than its clients' state."""
        own = type(self.runs.algorithm).name or type(self.runs.algorithm).__name__
        federation = self.federation
        if federation.participation.cohort_size == federation.num_clients:
            raise InputError(
                "client_state='host' keeps what a round's clients need on the device, and here "
                "these are all clients: take a participation below 1, or client_state='device'."
            )
        for asking in ("round_splits", "scored_splits"):
            try:
                getattr(self, asking)
            except (TypeError, AttributeError, ValueError) as error:
                if "Fetched" not in str(error):
                    raise
                what = "samples" if "samples" in str(error) else "models or other state"
                when = "a round" if asking == "round_splits" else "scoring"
                raise InputError(
                    f"{own} needs {what} of clients that do not take part, in {when}, so they "
                    f"can't stay in host memory: take client_state='device'{self._or()}."
                ) from error

    def _or(self) -> str:
        """The setting with which only a round's members train, where the algorithm has one."""
        algorithm = self.runs.algorithm
        if algorithm.hyperparameters().get("who") != "everyone":
            return ""
        choices = get_args(get_type_hints(type(algorithm))["who"])
        others = [f", or {algorithm.name}.who={one}" for one in choices if one != "everyone"]
        return "".join(others)

    def memory(self) -> Memory | None:
        """See `Program.memory`; the device's, with two cohorts there."""
        execution, found = self.federation.execution, []
        platform, devices, data = execution.platform, execution.devices, self.data
        both = (
            (programs.one_round, self.round_operands, self.round_splits, self.members, {}),
            (
                programs.scores,
                self.block_operands,
                self.scored_splits,
                self.width,
                {"extra": self.adapt},
            ),
        )
        for fn, operands, splits, clients, options in both:
            shapes = data.of(np.zeros(1, np.int64), splits, clients)
            federation = replace(self.federation, data=shapes)
            kept, rows, *others = operands(federation)
            rows = place(rows, programs.mesh(federation), RUNS, AXIS)
            given = kept, rows, *others
            traced = fn.trace(*given, layout=self.layout, **options)
            state = nbytes(given[:2], platform)
            # Scoring does not use up its inputs.
            owned = len(jax.tree.leaves(given[:2])) if fn is programs.one_round else 0
            jaxpr = traced.jaxpr.jaxpr
            try:
                most = peak(jaxpr, frozenset(jaxpr.invars[:owned]), devices, platform)
            except Exception:  # as in `Program.memory`, which warns
                return None
            most -= state if owned else 0
            working = round(max(most, 0) * BESIDE.get(platform, 1))
            copies = 2 + several() * count()  # each process gives rows of the size of the cohort
            held = devices * nbytes(given[0], platform) + copies * nbytes(given[1], platform)
            pool = nbytes((federation.data.samples, federation.data.labels), platform)
            found.append(Memory(devices * (nbytes(federation, platform) + pool), held, working))
        return max(found, key=lambda one: one.total)
