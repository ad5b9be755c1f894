"""Devices of a run, made before JAX starts: each core of a CPU as a device."""

import os

import jax

import fedjax_pfl as pfl
from fedjax_pfl.execution import processes, shares
from fedjax_pfl.execution.shares import AUTO
from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import shown

SINGLE_THREADED = "--xla_cpu_multi_thread_eigen=false"
MOST = 1024  # devices of one CPU; JAX takes seconds for them, and for 100,000 forever


def prepare(devices: str, num_clients: int, mesh: str = AUTO) -> int:
    """The number of devices of a run, those of all processes together.

    "auto" is 1 on accelerators. On a CPU it is one device for each core, at most one for each
    client: a core that trains its own client never waits, while cores that share one client's
    matrix products wait for each other in every step. CPU devices can be made only before JAX
    starts; if JAX runs already, "auto" is 1. With a `mesh` it is as many as that takes, and 1 where
    these can't be made: whoever reads the mesh then says how many there are.

    Several processes share all their devices; on CPUs each makes as many.

    Raises:
      InputError: neither "auto" nor a number of devices that there are, or can be made.
    """
    if processes.several():
        _check_alike(devices, mesh)
    if mesh != AUTO:
        asked = shares.parsed(mesh)
        if devices != "auto":
            shares.check(asked, _whole(devices), f"--devices is {devices}")
        if not processes.several():
            there = _start(asked.devices) or asked.devices <= len(jax.local_devices())
            return asked.devices if there else 1
        devices, num_clients = str(asked.devices), asked.devices
    if processes.several():
        return _of_several(devices, num_clients, mesh)
    wanted = cores() if devices == "auto" else _whole(devices)
    wanted = max(min(wanted, num_clients), 1)
    chosen = _start(wanted)
    if devices == "auto":
        return wanted if chosen and jax.default_backend() == "cpu" else 1
    return wanted


def _check_alike(devices: str, mesh: str) -> None:
    """Raises `InputError` where processes have other devices; they are no part of a run."""
    mine = f"--devices={devices} --mesh={mesh}"
    for number, theirs in enumerate(processes.exchange(mine)):
        if theirs != mine:
            raise pfl.InputError(
                f"All processes need the same devices, but process {number} has {shown(theirs)} "
                f"and process {processes.index()} {shown(mine)}."
            )


def _of_several(devices: str, num_clients: int, mesh: str) -> int:
    count = processes.count()
    wanted = None if devices == "auto" else _whole(devices)
    if wanted is not None and wanted % count:
        if mesh != AUTO:
            fits = shares.nearest(shares.parsed(mesh), -(-wanted // count) * count)
            raise pfl.InputError(
                f"--mesh must take a multiple of {count} devices, the number of processes, and "
                f"{mesh} takes {wanted}: the nearest that fits is {fits}."
            )
        raise pfl.InputError(
            f"--devices must be 'auto' or a multiple of {count}, the number of processes, got "
            f"{wanted}."
        )
    most = -(-num_clients // count)
    each = min(processes.exchange(cores())) if wanted is None else wanted // count
    _start(min(each, most) if wanted is None else each)
    return len(processes.all_devices()) if wanted is None else wanted


def _start(count: int) -> bool:
    """Asks for so many CPU devices; False if JAX has started already, with as many as it has.

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


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _whole(text: str) -> int:
    number = decimal(text)
    if not number:
        raise pfl.InputError(
            f"--devices must be 'auto' or a whole number from 1 on, got {shown(text)}."
        )
    return number
