"""The number of lanes that keep a local step in the on-chip memory of a TPU.

What does not fit there goes through the memory of the device, and is padded on the way.
"""

from dataclasses import replace

import jax

from fedjax_pfl.engine.costs import one_client, step, step_operands
from fedjax_pfl.engine.memory import nbytes, peak
from fedjax_pfl.engine.program import Program
from fedjax_pfl.federation.federation import Federation

# Bytes for a local step, unpadded: a quarter of what a v5e and a v6e have (a program is not told
# which TPU it is for). The rest is for what comes and goes (samples, arrays in two layouts) and for
# padding: with half of it, whether a convolution's input found room was luck.
ON_CHIP_BYTES = {"tpu": 32 * 2**20}
# Local steps in a round from which narrower lanes pay: models are copied between their turns.
WORTH = 8


def resident(program: Program) -> Program:
    """Return the program with as many lanes as keep a local step on the chip, if automatic."""
    federation = program.federation
    execution = federation.execution
    room = ON_CHIP_BYTES.get(execution.platform)
    if room is None or not execution.auto or execution.chunk:
        return program
    trained = federation.participation.cohort_size
    lanes = execution.lanes(trained)
    needs = step_bytes(federation) if lanes > 1 else None
    if needs is None:
        return program
    beside = program.num_runs if execution.seeds == "vmap" else 1
    fewer = narrowed(lanes, needs[0] * beside, needs[1] * beside, room, _steps(federation))
    if fewer == lanes:
        return program
    execution = replace(execution, chunk=fewer)
    return replace(program, federation=replace(federation, execution=execution))


def narrowed(lanes: int, model: int, activations: int, room: int, steps: int = WORTH) -> int:
    """Return the number of lanes whose models, gradients and activations fit into `room` bytes.

    At least two: even where two do not fit, fewer arrays pass through memory. All lanes stay if
    their activations fit and one of these holds: everything fits into 1.5 times the room (three
    eighths of the chip's memory); a round has few steps, since each turn copies models once more;
    or two models are too large, so that they pass through memory in any case.

    Args:
      lanes: without a limit.
      model: bytes of one lane's state and gradients.
      activations: bytes of all else that is alive at once in its step.
      steps: local steps of a lane in a round.
    """
    most = room // max(model + activations, 1)
    fits = 2 * lanes * (model + activations) <= 3 * room
    if lanes * activations <= room and (fits or steps < WORTH or most < 2):
        return lanes
    return -(-lanes // -(-lanes // max(most, 2)))


def _steps(federation: Federation) -> int:
    """Return the local steps of the average client in a round."""
    train = federation.data.train
    return federation.schedule.fitting(train.capacity).total_steps(train.mean_size)


def step_bytes(federation: Federation) -> tuple[int, int] | None:
    """Return unpadded bytes of one client's state and gradients, and of the rest of its step.

    None where this version of JAX has other internals.
    """
    try:
        client = one_client(federation)
        state, *others = jax.eval_shape(step_operands, client)
        most = peak(jax.make_jaxpr(step)(client, state, *others).jaxpr)
    except Exception:  # `Program.memory` warns
        return None
    gradients = nbytes(state.model["params"])
    return nbytes(state) + gradients, max(most - gradients, 0)
