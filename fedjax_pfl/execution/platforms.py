"""Platforms for which programs can be compiled.

A program may be made on one machine for another. So what depends on the platform is decided by the
name of a platform, never by the devices of the process that traces.
"""

import os

import jax

from fedjax_pfl.utils.errors import require_name

PLATFORMS = ("cpu", "gpu", "tpu")
LANES = 128  # numbers in a row of a TPU's tile


def resolve_platform(name: str | None = None) -> str:
    """Return one of `PLATFORMS`: the name, or that of this process's devices.

    Accelerators of other kinds count as "gpu".

    Raises:
      InputError: no such platform.
    """
    if name is None:
        name = jax.default_backend()
        return name if name in PLATFORMS else "gpu"
    require_name("platform", name, PLATFORMS)
    return name


def row_length(numbers: int, platform: str) -> int:
    """Return the length to which rows are padded for fast access to single rows.

    A TPU reads rows along the axis of the lanes. Unless the rows fill the lanes, an argument has
    the other layout, and each call of a program copies it. Short rows are not padded: they would
    take more than twice the memory.
    """
    filled = -(-numbers // LANES) * LANES
    return filled if platform == "tpu" and filled <= 2 * numbers else numbers


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
