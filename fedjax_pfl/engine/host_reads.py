"""What rounds, models and scores read of clients, and refusals of what host memory can't give."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, get_args, get_type_hints

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.execution.processes import is_distributed
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.trees import is_missing_rows

if TYPE_CHECKING:
    from fedjax_pfl.engine.host_program import HostProgram


def check(program: "HostProgram") -> None:
    """Raise `InputError` if a round needs more than its clients' state and samples."""
    algorithm, participation = program.runs.algorithm, program.federation.participation
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
    if program.reads == "everyone" or (program.reads == "others" and is_distributed()):
        raise InputError(
            f"{_name(algorithm)} needs models, other state or samples of clients that do not take "
            "part in a round, so they can't stay in host memory: take client_state='device'"
            f"{_or(algorithm)}."
        )


class Splits(NamedTuple):
    """The splits whose samples are read by rounds, by models made after them, and by scores."""

    rounds: tuple[str, ...]
    models: tuple[str, ...]
    scores: tuple[str, ...]


def splits_read(algorithm: Algorithm, federation: Federation, adapt: Adaptation | None) -> Splits:
    """Return the splits whose samples must be on the device."""
    data = federation.data
    held_out = tuple(split for split in ("validation", "test") if data.split(split).total)
    models = () if algorithm.adaptation() is None else ("train",)
    if algorithm.models_read_samples:
        models = ("train", *held_out)
    rounds = ("train", "validation") if algorithm.needs_validation else ("train",)
    training = adapt is not None or "train" in models
    return Splits(rounds, models, (*["train"] * training, *held_out))


@contextmanager
def as_declared(algorithm: Algorithm) -> Iterator[None]:
    """Context manager that explains reads of undeclared rows while tracing.

    Raises:
      InputError: programs need rows or samples that the algorithm does not declare.
    """
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        if not is_missing_rows(error):
            raise
        raise InputError(
            f"{_name(algorithm)} needs models, other state or samples that its class attribute "
            f"`reads` does not declare ({error}): take client_state='device'."
        ) from error


def _name(algorithm: Algorithm) -> str:
    return type(algorithm).name or type(algorithm).__name__


def _or(algorithm: Algorithm) -> str:
    """Suggest the setting with which only members train, if the algorithm has one."""
    if algorithm.hyperparameters().get("participants") != "all":
        return ""
    choices = get_args(get_type_hints(type(algorithm))["participants"])
    return "".join(f", or {algorithm.name}.participants={one}" for one in choices if one != "all")
