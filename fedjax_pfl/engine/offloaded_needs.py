"""Rows, samples and memory that a simulation with offloaded client state needs.

An algorithm declares whose rows a round reads (`Algorithm.reads`), and fields of its state
declare which leaves clients keep.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from fedjax_pfl.engine.compiled import advance, begin, first_leaves, models, scores
from fedjax_pfl.engine.lowered import Lowered
from fedjax_pfl.engine.memory import Memory, nbytes, working_bytes
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.state_sharding import Layout, PartialStates
from fedjax_pfl.engine.state_store import Address
from fedjax_pfl.execution.mesh import (
    CLIENTS,
    RUNS,
    described_devices,
    mesh_of,
    place,
    shapes_on,
)
from fedjax_pfl.execution.processes import count, is_distributed
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.host_data import HostData
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import by_field
from fedjax_pfl.utils.trees import is_missing_rows
from fedjax_pfl.utils.typing import Device, State, Tree

ONE_ROUND = {"capacity": 1, "adapt": None, "scored": ()}  # static arguments of its program


class Call(NamedTuple):
    """A program and the shapes of its operands.

    Attributes:
      program: the program.
      operands: its arguments' shapes, with rows of the clients that it runs.
      options: its static arguments.
      states: the first operand.
      federation: the federation operand, with samples of these clients.
      samples: the samples, labels and indices in it.
    """

    program: Any
    operands: tuple
    options: dict[str, Any]
    states: PartialStates
    federation: Federation
    samples: Tree

    def trace(self) -> jax.stages.Traced:
        return self.program.trace(*self.operands, **self.options)


@dataclass(frozen=True)
class OffloadedNeeds(Program):
    """A program whose devices hold the state and samples of some clients at a time."""

    small: ClassVar[int] = 4096  # bytes of a client's row of a leaf that stays on the device

    @property
    def reads_others(self) -> bool:
        """Whether rounds read rows of clients that are not on the devices."""
        return self.runs.algorithm.reads == "others"

    @cached_property
    def shapes(self) -> State:
        total = np.int32(self.rounds)

        def first(runs, federation):
            return jax.vmap(partial(begin, federation=federation, total=total))(runs)

        return jax.eval_shape(first, self.runs, self.federation)

    @cached_property
    def layout(self) -> Layout:
        def hosted(value: Tree, axes: int) -> Tree:
            def one(leaf):
                row = leaf.size // max(self.num_runs * self.federation.num_clients, 1)
                known = not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
                return axes == 1 and known and row * leaf.dtype.itemsize > self.small

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

    @property
    def round_splits(self) -> tuple[str, ...]:
        """The splits whose samples a round reads."""
        return ("train", "validation") if self.runs.algorithm.needs_validation else ("train",)

    @property
    def model_splits(self) -> tuple[str, ...]:
        """The splits from whose samples personalized models are made."""
        algorithm = self.runs.algorithm
        if algorithm.models_read_samples:
            return ("train", *self._held_out)
        return () if algorithm.adaptation() is None else ("train",)

    @property
    def scored_splits(self) -> tuple[str, ...]:
        """The splits whose samples scoring reads."""
        training = self.adapt is not None or "train" in self.model_splits
        return (*["train"] * training, *self._held_out)

    @property
    def _held_out(self) -> tuple[str, ...]:
        data = self.federation.data
        return tuple(split for split in ("validation", "test") if data.split(split).total)

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

    @cached_property
    def unscored(self) -> dict[str, np.ndarray]:
        """The scores [R, N] of a round that is not scored."""
        if self.scored == ():
            return {}
        clients, number = jax.ShapeDtypeStruct((self.width,), np.int32), np.int32(0)
        operands = self.shapes_of(self.width), self.runs, self.federation, number, number, clients
        shapes = scores.eval_shape(*operands, adapt=self.adapt)
        clients = self.federation.num_clients
        return {n: np.full((s.shape[0], clients), np.nan, s.dtype) for n, s in shapes.items()}

    def check(self) -> None:
        """Raise `InputError` if a round needs more than its clients' state and samples."""
        algorithm, participation = self.runs.algorithm, self.federation.participation
        if participation.cohort_size == self.federation.num_clients:
            clients, remedy = "here these are all clients", "take a lower participation"
            if participation.poisson is not None:
                clients = (
                    "a round of Poisson sampling has room for six standard deviations above its "
                    f"mean, here for all {self.federation.num_clients} clients"
                )
                remedy = "take sampling='fixed', a lower participation"
            raise InputError(
                "client_state='host' keeps what a round's clients need on the device, and "
                f"{clients}: {remedy}, or client_state='device'."
            )
        if algorithm.reads == "everyone" or (self.reads_others and is_distributed()):
            own = type(algorithm).name or type(algorithm).__name__
            raise InputError(
                f"{own} needs models, other state or samples of clients that do not take part in "
                f"a round, so they can't stay in host memory: take client_state='device'"
                f"{self._or()}."
            )

    def _or(self) -> str:
        """Suggest the setting with which only members train, if the algorithm has one."""
        algorithm = self.runs.algorithm
        if algorithm.hyperparameters().get("participants") != "all":
            return ""
        choices = get_args(get_type_hints(type(algorithm))["participants"])
        return "".join(
            f", or {algorithm.name}.participants={one}" for one in choices if one != "all"
        )

    @contextmanager
    def as_declared(self) -> Iterator[None]:
        """Context manager that explains reads of undeclared rows while tracing.

        Raises:
          InputError: programs need rows or samples that the algorithm does not declare.
        """
        try:
            yield
        except (TypeError, AttributeError, ValueError) as error:
            if not is_missing_rows(error):
                raise
            own = type(self.runs.algorithm).name or type(self.runs.algorithm).__name__
            raise InputError(
                f"{own} needs models, other state or samples that its class attribute `reads` "
                f"does not declare ({error}): take client_state='device'."
            ) from error

    @property
    def mesh(self) -> Mesh:
        return mesh_of(self.federation.execution.devices, self.federation.execution.runs)

    def put(self, tree: Tree, *lead: str | None) -> Tree:
        """Put arrays on the devices as `mesh.place` does."""
        one = self.federation.execution.all_devices == 1
        return jax.device_put(tree) if one else place(tree, self.mesh, *lead)

    def shapes_of(self, clients: int) -> PartialStates:
        """Return shapes of states with rows of `k` clients on the devices."""
        device, rows = self.layout.parted(self.shapes)
        rows = [jax.ShapeDtypeStruct((x.shape[0], clients, *x.shape[2:]), x.dtype) for x in rows]
        return PartialStates(device, rows, self.address(0), self.layout, clients)

    def address(self, store: int) -> Address:
        """Return where programs read rows of the store with this number."""
        runs = np.arange(self.num_runs, dtype=np.int32)
        return Address(np.full_like(runs, store), runs, self.reads_others)

    def calls(self, home: Any = None) -> tuple[Call, Call]:
        """Return a round, and the scoring of a block, on a device `home`; nothing is traced."""
        zero, total = np.int32(0), np.int32(self.rounds)
        cohort = self.federation.participation.cohort_size
        given, *rest = self._operands(home, cohort, self.members, self.round_splits)
        numbers = shapes_on(home, (zero, zero, total, zero))
        one_round = Call(advance, (*given, *numbers), ONE_ROUND, *rest)
        return one_round, self._of_block(scores, home, self.scored_splits, adapt=self.adapt)

    def call_of_models(self) -> Call:
        """Return the program of a block's models; nothing is traced."""
        return self._of_block(models, None, self.model_splits)

    def _of_block(
        self, fn: Callable[..., Any], home: Any, splits: tuple[str, ...], **options: Any
    ) -> Call:
        given, *rest = self._operands(home, self.width, self.width, splits)
        rows = np.zeros(self.width, np.int32)
        numbers = shapes_on(home, (np.int32(0), np.int32(self.rounds), rows))
        return Call(fn, (*given, *numbers), options, *rest)

    def _operands(self, home: Any, clients: int, most: int, splits: tuple[str, ...]) -> tuple:
        data = self.data.of(np.zeros(1, np.int64), splits, most)
        samples = data.samples, data.labels, [data.split(name).index for name in splits]
        federation = replace(self.federation, data=data)
        states = self.shapes_of(clients)
        shapes = shapes_on(
            home, (states.device, states.rows, states.address, self.runs, federation)
        )
        device, rows, address, runs, there = shapes
        device = place(device, self.mesh, RUNS)
        rows = place(rows, self.mesh, RUNS, CLIENTS)
        states = replace(states, device=device, rows=rows, address=address)
        return (states, runs, place(there, self.mesh)), states, federation, samples

    def held(self) -> Memory:
        """Return the device memory of samples and states of two cohorts; nothing is compiled."""
        return max(map(self._held, self.calls()), key=lambda one: one.total)

    def _held(self, call: Call) -> Memory:
        devices = self.federation.execution.all_devices
        # Each of several processes gives rows of the size of the cohort.
        copies = 2 + is_distributed() * count()
        state = devices * nbytes(call.states.device) + copies * nbytes(call.states.rows)
        pool = nbytes((call.federation.data.samples, call.federation.data.labels))
        return Memory(devices * (nbytes(call.federation) + pool), state, working=0)

    def memory(self) -> Memory:
        """Return the device memory as `Program.memory` does; compiles the round and the scoring."""
        devices, memories = self.federation.execution.all_devices, []
        for call in self.calls()[: 1 if self.scored == () else 2]:
            arguments = devices * nbytes((call.states.device, call.federation))
            arguments += nbytes(call.states.rows)
            with self.as_declared():
                working = working_bytes(call.trace().lower().compile(), arguments, devices)
            memories.append(replace(self._held(call), working=working))
        return max(memories, key=lambda one: one.total)

    def lowered(self, devices: Sequence[Device]) -> Lowered:
        """Lower the programs as `Program.lowered` does.

        Raises:
          InputError: rounds read rows of others while they run, which no plan counts.
        """
        if len(devices) != self.federation.execution.all_devices:
            raise ValueError("The program is for another number of devices.")
        if self.reads_others:
            raise InputError(
                "A plan does not count the models of other clients that rounds read from host "
                "memory: take client_state='device'."
            )
        home = SingleDeviceSharding(devices[0]) if len(devices) == 1 else None
        with described_devices(devices):
            of_round, _ = self.calls(home)
            shell = replace(self.federation, data=self.data.shell)
            operands = shapes_on(home, (self.runs, shell, np.int32(self.rounds)))
            start = first_leaves.trace(*operands, layout=self.layout)
            return Lowered(start.lower(), of_round.trace().lower(), self.federation)
