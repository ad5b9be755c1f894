"""What an algorithm requires of a federation."""

from typing import Any

from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.errors import InputError


def check_requirements(algorithm: Any, federation: Federation) -> None:
    """Raise `InputError` if a federation lacks what an algorithm declares to need."""
    name = _name(algorithm)
    if algorithm.needs_classes and not federation.data.num_classes:
        raise InputError(
            f"{name} needs a class for each sample, and this data set's task is "
            f"{federation.network.objective.name}, which has none."
        )
    check_validation(algorithm, federation)
    if federation.adapters is None or not federation.adapters.ranks:
        return
    if not algorithm.takes_ranks:
        raise InputError(
            f"{name} needs adapters of one rank: give lora_rank in place of lora_ranks."
        )
    if getattr(federation.uploads, "compressor", None) is not None:
        raise InputError("compress needs adapters of one rank: lora_rank, not lora_ranks.")


def check_validation(algorithm: Any, federation: Federation) -> None:
    """Raise `InputError` if the algorithm uses validation samples and no client has any."""
    if algorithm.needs_validation and not federation.data.validation.total:
        raise InputError(
            f"{_name(algorithm)} uses validation samples, and no client has any: "
            "partition.split_validation(0.2, seed=0), or --validation_fraction=0.2, sets training "
            "samples aside."
        )


def require_features(algorithm: Any, federation: Federation) -> None:
    """Raise `InputError` if the network does not define its features; for use in `check`."""
    if federation.num_features < 1:  # reading it refuses such a network
        raise InputError(f"{_name(algorithm)} needs features, and the network's have no width.")


def require_whole_models(algorithm: Any, federation: Federation) -> None:
    """Raise `InputError` unless the server may average every trainable leaf; for `check`."""
    name, plan = _name(algorithm), federation.plan
    for i, path in enumerate(plan.paths):
        if plan.shared[i] or path.partition("/")[0] != "params":
            continue
        if plan.is_frozen(i):
            raise InputError(f"{name} trains whole models, and {path} is frozen.")
        raise InputError(
            f"{name} averages whole models and can't keep {path} private: share must be 'all' and "
            "batch_norm not 'local'."
        )


def _name(algorithm: Any) -> str:
    return algorithm.name or type(algorithm).__name__
