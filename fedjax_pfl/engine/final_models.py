"""Models after the last round of a simulation, and models of new clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_pfl.core.requirements import check_validation
from fedjax_pfl.data.columns import check_feature_names
from fedjax_pfl.data.scaling import check_stored
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import served
from fedjax_pfl.execution.locations import short_locations
from fedjax_pfl.federation.data_sharding import place_on_devices
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.models.base_types import restored
from fedjax_pfl.models.cached_features import complete
from fedjax_pfl.models.frozen_backbone import FrozenBackbone
from fedjax_pfl.models.task import Task
from fedjax_pfl.models.wrapped_task import part_of
from fedjax_pfl.results.model_names import GLOBAL, PERSONALIZED
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import as_array, require_unmasked
from fedjax_pfl.utils.errors import InputError, require, require_whole
from fedjax_pfl.utils.structs import Broadcast
from fedjax_pfl.utils.typing import Stack, State, Tree


@dataclass(frozen=True)
class Final:
    """The state of a simulation after some rounds, and the models of clients that it contains.

    Attributes:
      program: of all requested rounds, since schedules depend on their number.
      padded_states: the states after the last round, on the devices.
    """

    program: Program
    padded_states: State

    @property
    def states(self) -> State:
        """The states after the last round without padding; see `Program.of_clients`."""
        return self.program.of_clients(self.padded_states)

    @short_locations()
    @checked
    def models(self, rows: Sequence[int] | None = None) -> dict[str, Stack | Broadcast]:
        """Return models after the last round: [runs, k, ...], or [runs, ...] if `Broadcast`."""
        count = self.program.federation.num_clients
        requested = np.arange(count) if rows is None else np.asarray(rows)
        bad = [int(r) for r in requested if not 0 <= r < count]
        require(not bad, "rows", bad, f"clients in 0..{count - 1}")
        return self.program.models(self.padded_states, self._last(), requested.astype(np.int32))

    @short_locations()
    @checked
    def predict(self, run: int, row: int, samples: ArrayLike) -> np.ndarray:
        """Return outputs of one run's personalized model of one client, for unscaled samples.

        Args:
          run: of the R runs, seeds outermost.
          row: of the client.
          samples: [n, ...], in the shape and scale of the data set; they are turned and scaled as
            the client's are.

        Returns:
          [n, C], or the outputs of another task.

        Raises:
          InputError: no such run or client, the algorithm makes no model for the client, or the
            samples have another shape or type.
        """
        federation = self.program.federation
        model, backbone = self._of_client(run, row)
        require_unmasked("samples", samples)
        (task, data), given = complete(federation.network, federation.data), samples
        check_feature_names("samples", samples, data.feature_names, "dataset.feature_names")
        samples = as_array(samples)
        shape = ", ".join(map(str, data.sample_shape))
        require(samples.ndim > 0, "samples", given, f"an array [n, {shape}]")
        tokens = np.issubdtype(data.input_dtype("float32"), np.integer)
        texts = data.vocabulary is not None
        ids = "whole numbers" + ", as dataset.encode makes them of texts" * texts
        kinds, allowed = ("iu", ids) if tokens else ("biuf", "numbers")
        require(samples.dtype.kind in kinds, "Samples", str(samples.dtype), allowed)
        fits = samples.shape[1:] == data.sample_shape
        require(fits, "Shape of the samples", samples.shape, f"[n, {shape}]")
        images = data.samples.dtype == np.float32 and len(data.sample_shape) == 3
        fractions = images and float(abs(data.samples).max()) <= 1
        check_stored(samples, data.samples.dtype, fractions)
        count = len(samples)
        if not count:
            samples = np.zeros((1, *data.sample_shape), samples.dtype)
        turns = data.at_round(self._last()).turns
        if turns is not None:
            samples = np.rot90(samples, int(turns[row]), axes=(1, 2))
        wide = str(jax.numpy.promote_types(task.dtype, "float32"))  # as `FederatedData` scales
        inputs = samples.astype(data.input_dtype(wide))
        if data.tokens is not None:
            known = np.asarray(data.tokens)
            low, high = int(samples.min(initial=0)), int(samples.max(initial=0))
            allowed = f"in 0..{len(known) - 1}, as in the data set"
            require(0 <= low <= high < len(known), "Token ids", f"{low}..{high}", allowed)
            inputs = known[inputs]
        if not tokens:
            scale, shift = (np.asarray(x, wide) for x in data.scaling_of(row))
            inputs = (inputs * scale + shift).astype(task.dtype)
        values = federation.initial_values
        return np.asarray(_outputs(task, values, backbone, model, inputs))[:count]

    @short_locations()
    def model(self, run: int, row: int | None = None) -> Tree:
        """Return a model of the user's own network, {"params": ..., "batch_stats": ...}.

        Frozen leaves are in it, and adapters are added to their kernels.

        Args:
          run: of the R runs, seeds outermost.
          row: of the client whose personalized model it is; None for the global model.

        Raises:
          InputError: no such run, client or model, or one that the network can't compute.
        """
        federation = self.program.federation
        if row is None:
            shared = self.models([0]).get(GLOBAL)
            name = self.program.runs.algorithm.name
            if not isinstance(shared, Broadcast):
                raise InputError(f"{name} has no global model: give a client.")
            model, backbone = _at((run,), shared.model), _at((run,), self.backbone())
        else:
            model, backbone = self._of_client(run, row)
        task, _ = complete(federation.network, federation.data)
        return jax.tree.map(np.asarray, task.bound({}, backbone).plain(model))

    def _of_client(self, run: int, row: int) -> tuple[Tree, Tree]:
        """Return one run's personalized model of one client, and the leaves that it lacks."""
        program, federation = self.program, self.program.federation
        run = require_whole("run", run, 0, program.num_runs - 1)
        row = require_whole("row", row, 0, federation.num_clients - 1)
        there = served(program.runs, federation)[run]
        ids = np.asarray(federation.data.ids)
        if not there[row]:
            raise InputError(
                f"{program.runs.algorithm.name} makes no model for client {ids[row]}; it has those "
                f"of {ids[there].tolist()}."
            )
        stack = self.models([row])[PERSONALIZED]
        shared = isinstance(stack, Broadcast)
        model = _at((run,), stack.model) if shared else _at((run, 0), stack)
        return model, _at((run,), self.backbone())

    def backbone(self) -> Tree | None:
        """Return the leaves that models lack, [runs, ...], in the models' type; None if none."""
        backbone = self.program.backbone(self.padded_states, self._last())
        task = part_of(self.program.federation.network, FrozenBackbone)
        if backbone is None or task is None or task.base_dtype is None:
            return backbone
        params = backbone.get("params", {})
        return {**backbone, "params": jax.vmap(partial(restored, dtype=task.dtype))(params)}

    @short_locations()
    def personalize(self, new_clients: Federation) -> Stack:
        """Return models of clients that never took part, leaves [runs, K, ...].

        Raises:
          InputError: the algorithm uses validation samples, and they have none; or noise was
            computed for the clients of the simulation from a `dp_epsilon`.
        """
        program = self.program
        noise = program.runs.numbers.get("dp_noise", 0.0)
        if new_clients.sample_privacy is not None and np.ndim(noise) == 2:  # [runs, clients]
            raise InputError(
                "The noise of dp_epsilon was computed for the clients of the simulation: take "
                "dp_noise, which new clients have too."
            )
        new_clients = program.runs.algorithm.prepare(new_clients)
        new_clients = new_clients.with_devices(program.federation.execution)
        check_validation(program.runs.algorithm, new_clients)
        return program.personalize(self.padded_states, self._last(), place_on_devices(new_clients))

    def _last(self) -> int:
        """Return the number of the last round, counted from 0."""
        return self.program.rounds - 1


def _at(place: tuple[int, ...], tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf[place], tree)


@partial(jax.jit, static_argnums=0)
def _outputs(
    network: Task, values: Tree, backbone: Tree, model: Tree, inputs: jax.Array
) -> jax.Array:
    return network.bound(values, backbone).predict(model, inputs)
