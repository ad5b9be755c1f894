"""Device memory: of the devices, and of a simulation by the compiler's plan."""

import os
from dataclasses import dataclass
from typing import Any

import jax

from fedjax_pfl.utils.errors import gigabytes


@dataclass(frozen=True)
class Memory:
    """Bytes of a simulation on all devices together.

    Attributes:
      data: samples, labels and index lists.
      state: the algorithm's state of all runs.
      working: all else that a round's program takes, by the compiler's plan: trained and mixed
        models, activations, measurements, padding of its arguments and, on a TPU, code.
    """

    data: int
    state: int
    working: int

    @property
    def total(self) -> int:
        return self.data + self.state + self.working

    def __str__(self) -> str:
        return (
            f"{gigabytes(self.total)} (data {gigabytes(self.data)}, state "
            f"{gigabytes(self.state)}, a round's working memory {gigabytes(self.working)})"
        )


def nbytes(tree: Any) -> int:
    """Return the bytes of all arrays (or shapes) of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def working_bytes(compiled: jax.stages.Compiled, held: int, devices: int) -> int:
    """Return a compiled program's bytes on all devices, less the `held` bytes of its arguments."""
    stats: Any = compiled.memory_analysis()
    added = stats.output_size_in_bytes - stats.alias_size_in_bytes
    added += stats.temp_size_in_bytes + stats.generated_code_size_in_bytes
    return devices * added + max(devices * stats.argument_size_in_bytes - held, 0)


def available(devices: int = 1) -> int | None:
    """Return the bytes available to a simulation: the devices' limits, or a CPU's memory."""
    statistics = [device.memory_stats() or {} for device in jax.local_devices()[:devices]]
    if all("bytes_limit" in one for one in statistics):
        return sum(int(one["bytes_limit"]) for one in statistics)
    return physical()


def physical() -> int | None:
    """Return the bytes of this machine's memory, or None if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on this system
        return None
