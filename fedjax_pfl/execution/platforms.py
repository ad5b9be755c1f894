"""Platforms for which programs can be compiled.

A program may be made on one machine for another. So what depends on the platform is decided by the
name of a platform, never by the devices of the process that traces.
"""

import jax

from fedjax_pfl.utils.errors import require_name

PLATFORMS = ("cpu", "gpu", "tpu")


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
