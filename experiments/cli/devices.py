"""Devices of a run, made before JAX starts: each core of a CPU as a device."""

import os

import jax

import fedjax_pfl as pfl
from fedjax_pfl.execution import mesh_shape, processes
from fedjax_pfl.execution.mesh_shape import AUTO
from fedjax_pfl.execution.platforms import cores
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import shown

SINGLE_THREADED = "--xla_cpu_multi_thread_eigen=false"
MOST = 1024  # devices of one CPU; JAX takes seconds for them, and for 100,000 forever


def prepare(devices: str, num_clients: int, mesh: str = AUTO) -> int:
    """Return the number of devices of a run in all its processes.

    "auto" is 1 on accelerators. On a CPU it is one device for each core, at most one for each
    client: a core that trains its own client never waits, while cores that share one client's
    matrix products wait for each other in every step. CPU devices can be made only before JAX
    starts; if JAX runs already, "auto" is 1. With a `mesh` it is as many as that takes, and 1 where
    these can't be made, which the check of the mesh then reports.

    Several processes share all their devices, which each has made in `start_share`.

    Raises:
      InputError: neither "auto" nor a number of devices that there are, or can be made.
    """
    if processes.is_distributed():
        return _of_several(devices, mesh)
    if mesh != AUTO:
        asked = mesh_shape.parsed(mesh)
        if devices != "auto":
            mesh_shape.check(asked, _whole(devices), f"--devices is {devices}")
        there = _start(asked.devices) or asked.devices <= len(jax.local_devices())
        return asked.devices if there else 1
    wanted = cores() if devices == "auto" else _whole(devices)
    wanted = max(min(wanted, num_clients), 1)
    chosen = _start(wanted)
    if devices == "auto":
        return wanted if chosen and jax.default_backend() == "cpu" else 1
    return wanted if wanted <= len(jax.local_devices()) else _whole(devices)  # which is refused


def start_share(devices: str, mesh: str, count: int, num_clients: int) -> None:
    """Request this process's devices before `count` processes connect.

    Raises:
      InputError: the number of devices of all processes is not a multiple of `count`.
    """
    wanted = _of_all(devices, mesh, count)
    most = min(cores(), -(-num_clients // count))
    each = most if wanted is None else wanted // count
    if each > 1 and "JAX_NUM_CPU_DEVICES" not in os.environ:  # else `_start` starts JAX
        _start(each)


def _of_several(devices: str, mesh: str) -> int:
    """Return the number of devices that the processes of a run have created.

    Raises:
      InputError: processes have other words, which are not part of a run's identity.
    """
    mine = f"--devices={devices} --mesh={mesh}"
    for number, theirs in enumerate(processes.exchange(mine)):
        if theirs != mine:
            raise pfl.InputError(
                f"All processes need the same devices, but process {number} has {shown(theirs)} "
                f"and process {processes.index()} {shown(mine)}."
            )
    return _of_all(devices, mesh, processes.count()) or len(processes.all_devices())


def _of_all(devices: str, mesh: str, count: int) -> int | None:
    """Return the number of devices requested of all processes together; None for all.

    Raises:
      InputError: no multiple of the number of processes.
    """
    wanted = None if devices == "auto" else _whole(devices)
    if mesh != AUTO:
        asked = mesh_shape.parsed(mesh)
        if wanted is not None:
            mesh_shape.check(asked, wanted, f"--devices is {devices}")
        wanted = asked.devices
    if wanted is None or wanted % count == 0:
        return wanted
    if mesh != AUTO:
        fits = mesh_shape.nearest(mesh_shape.parsed(mesh), -(-wanted // count) * count)
        raise pfl.InputError(
            f"--mesh must take a multiple of {count} devices, the number of processes, and "
            f"{mesh} takes {wanted}: the nearest that fits is {fits}."
        )
    raise pfl.InputError(
        f"--devices must be 'auto' or a multiple of {count}, the number of processes, got {wanted}."
    )


def _start(count: int) -> bool:
    """Request CPU devices; return whether this process has them.

    Raises:
      InputError: no process has so many.
    """
    if count == 1 or "JAX_NUM_CPU_DEVICES" in os.environ:
        return count <= len(jax.local_devices())
    if count > MOST:
        raise pfl.InputError(f"A process can have {MOST} devices at most, got {count}.")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        return False
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {SINGLE_THREADED}".strip()
    return True


def _whole(text: str) -> int:
    number = decimal(text)
    if not number:
        raise pfl.InputError(
            f"--devices must be 'auto' or a whole number from 1 on, got {shown(text)}."
        )
    return number
