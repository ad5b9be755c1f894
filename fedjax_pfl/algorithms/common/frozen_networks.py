"""Frozen networks that local steps run beside the trained one, and their forward passes."""

from fedjax_pfl import core, training


def passes(federation: core.Federation, networks: int) -> int:
    """Return the forward passes of so many frozen networks per local step, in samples."""
    schedule = federation.schedule.fitting(federation.data.train.capacity)
    return networks * schedule.samples_per_step


def check_passes(name: str, federation: core.Federation, networks: int) -> None:
    """Raise `InputError` if a client's forward passes in a round are too many to be counted."""
    most = passes(federation, networks) * int(federation.steps().max())
    if most >= training.COUNT_LIMIT:
        raise core.InputError(
            f"{name} would take {most:,} forward passes for a client in a round, but they can be "
            f"counted below {training.COUNT_LIMIT:,}: take fewer local steps or smaller "
            "batches."
        )
