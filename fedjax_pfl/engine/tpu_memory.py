"""The number of lanes that keep a local step in the on-chip memory of a TPU.

Arrays that do not fit there are moved to and from the device's main memory, padded to tiles.
"""

from dataclasses import replace

import jax

from fedjax_pfl.engine.costs import one_client, step_operands
from fedjax_pfl.engine.memory import nbytes
from fedjax_pfl.engine.program import Program
from fedjax_pfl.federation.federation import Federation

# Bytes for a local step, without padding: a quarter of the on-chip memory of a v5e or v6e, as a
# program does not know its TPU. The rest is for padding and temporary arrays, such as samples,
# gradients of activations and arrays in two layouts.
ON_CHIP_BYTES = {"tpu": 31 * 2**20}
# Local steps in a round from which fewer lanes pay, although models are copied between their turns.
MIN_STEPS = 8


def with_lanes_on_chip(program: Program) -> Program:
    """Return the program with as many lanes as keep a local step on the chip, if automatic."""
    federation = program.federation
    execution = federation.execution
    room = ON_CHIP_BYTES.get(execution.platform)
    if room is None or not execution.auto or execution.max_lanes:
        return program
    trained = federation.participation.cohort_size
    lanes = execution.lanes(trained)
    beside = program.num_runs if execution.seeds == "vmap" else 1
    model, activations = (beside * size for size in step_bytes(federation))
    fewer = lanes_on_chip(lanes, model, activations, room, _steps(federation))
    if fewer == lanes:
        return program
    execution = replace(execution, max_lanes=fewer)
    return replace(program, federation=replace(federation, execution=execution))


def lanes_on_chip(
    lanes: int, model: int, activations: int, room: int, steps: int = MIN_STEPS
) -> int:
    """Return the number of lanes whose models, gradients and activations fit into `room` bytes.

    There are at least two: even if these do not fit, fewer arrays are moved. All lanes stay if
    their activations fit and one of these holds: everything fits into 1.5 times the room (three
    eighths of the chip's memory); a round has few steps, so that copies of models between turns
    dominate; or two models do not fit in any case.

    Args:
      lanes: without a limit.
      model: bytes of one lane's state and gradients.
      activations: bytes of what its backward pass keeps beside.
      steps: local steps of a lane in a round.
    """
    most = room // max(model + activations, 1)
    fits = 2 * lanes * (model + activations) <= 3 * room
    if lanes * activations <= room and (fits or steps < MIN_STEPS or most < 2):
        return lanes
    return -(-lanes // -(-lanes // max(most, 2)))


def _steps(federation: Federation) -> int:
    """Return the local steps of the average client in a round."""
    train = federation.data.train
    return federation.schedule.fitting(train.capacity).total_steps(train.mean_size)


def step_bytes(federation: Federation) -> tuple[int, int]:
    """Return unpadded bytes of a client's state and gradients, and of what backpropagation keeps.

    Weights that it keeps are not counted again.
    """

    def kept(federation, model, batch, key):
        def loss(params):
            return federation.task.forward({**model, "params": params}, batch, key).loss

        weights = {id(leaf) for leaf in jax.tree.leaves(model)}
        backward = jax.vjp(loss, model["params"])[1]  # a pytree of what it keeps
        return [leaf for leaf in jax.tree.leaves(backward) if id(leaf) not in weights]

    client = one_client(federation)
    state, *others = jax.eval_shape(step_operands, client)
    activations = nbytes(jax.eval_shape(kept, client, state.model, *others[:2]))
    return nbytes((state, state.model["params"])), activations
