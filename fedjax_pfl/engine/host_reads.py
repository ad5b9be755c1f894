"""Which clients' rows and samples a program reads, and refusals of what the host can't give."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_type_hints

import jax
import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.compiled import models
from fedjax_pfl.execution.processes import is_distributed
from fedjax_pfl.federation.host_data import SPLITS
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.trees import is_missing_rows

if TYPE_CHECKING:
    from fedjax_pfl.engine.host_program import HostProgram


def with_rows_read(program: "HostProgram") -> "HostProgram":
    """Return the program with the rows and samples that its rounds and models read.

    Raises:
      InputError: a round needs more than its clients' state and samples, or `init` reads samples.
    """
    _check_cohort(program)
    reads, algorithm = rows_read(program), program.runs.algorithm
    name = type(algorithm).name or type(algorithm).__name__
    if _is_missing(partial(_first_state, program)):
        raise InputError(
            f"{name} reads clients' samples before its first round, when they are in host memory: "
            f"take client_state='device'{_or(algorithm)}."
        )
    if reads == "everyone" or (reads == "others" and is_distributed()):
        raise InputError(
            f"{name} needs models, other state or "
            "samples of clients that do not take part in a round, so they can't stay in host "
            f"memory: take client_state='device'{_or(algorithm)}."
        )
    program = replace(program, reads=reads)
    call = program.call_of_block(models, program.splits.models)
    return replace(program, models_read_samples=_is_missing(call.trace))


def rows_read(program: "HostProgram") -> str:
    """Return whose rows a round reads: of the "cohort", also "others", or "everyone" at once.

    Rounds are traced with the rows of their cohort, and then with others block by block.
    """
    for reads in ("cohort", "others"):
        one_round, *_ = replace(program, reads=reads).calls()
        if not _is_missing(one_round.trace):
            return reads
    return "everyone"


def _first_state(program: "HostProgram") -> Any:
    """Trace `init` of an algorithm, without samples."""
    data = program.federation.data
    none = {name: replace(data.split(name), index=None) for name in SPLITS}
    federation = replace(program.federation, data=replace(data, **none))
    run = jax.tree.map(lambda leaf: leaf[0], program.runs)

    def first(federation):
        ctx = run.context(federation, np.int32(0), np.int32(program.rounds))
        return run.algorithm.init(ctx)

    return jax.eval_shape(first, federation)


def _is_missing(trace: Callable[[], Any]) -> bool:
    """Return whether a function needs rows or samples that are not on the device."""
    try:
        trace()
    except (TypeError, AttributeError, ValueError) as error:
        if not is_missing_rows(error):
            raise
        return True
    return False


def _check_cohort(program: "HostProgram") -> None:
    """Raise `InputError` if all clients take part in a round."""
    participation = program.federation.participation
    if participation.cohort_size == program.federation.num_clients:
        clients, remedy = "here these are all clients", "take a lower participation"
        if participation.poisson is not None:
            clients = (
                "a round of Poisson sampling has room for six standard deviations above its "
                f"mean, here for all {program.federation.num_clients} clients"
            )
            remedy = "take sampling='fixed', a lower participation"
        raise InputError(
            "client_state='host' keeps what a round's clients need on the device, and "
            f"{clients}: {remedy}, or client_state='device'."
        )


class Splits(NamedTuple):
    """The splits whose samples are read by rounds, by models made after them, and by scores."""

    rounds: tuple[str, ...]
    models: tuple[str, ...]
    scores: tuple[str, ...]


def splits_read(program: "HostProgram") -> Splits:
    """Return the splits whose samples must be on the device."""
    data, algorithm = program.federation.data, program.runs.algorithm
    held_out = tuple(split for split in ("validation", "test") if data.split(split).total)
    of_models = () if algorithm.adaptation() is None else ("train",)
    if program.models_read_samples:
        of_models = ("train", *held_out)
    rounds = ("train", "validation") if algorithm.needs_validation else ("train",)
    training = program.adapt is not None or "train" in of_models
    return Splits(rounds, of_models, (*["train"] * training, *held_out))


def _or(algorithm: Algorithm) -> str:
    """Suggest the setting with which only members train, if the algorithm has one."""
    if vars(algorithm).get("participants") != "all":
        return ""
    choices = get_args(get_type_hints(type(algorithm))["participants"])
    return "".join(f", or {algorithm.name}.participants={one}" for one in choices if one != "all")
