"""Shapes of the device mesh: devices for clients times devices for runs."""

import math
from typing import NamedTuple

from fedjax_pfl.utils.conversions import decimal
from fedjax_pfl.utils.errors import InputError, shown, unknown_name

CLIENTS, RUNS = "clients", "runs"  # axes of the mesh of devices
AUTO = "auto"


class MeshShape(NamedTuple):
    """Shape of the device mesh: `runs` groups of `clients` devices, which divide the runs."""

    clients: int = 1
    runs: int = 1

    @property
    def devices(self) -> int:
        return self.clients * self.runs

    def __str__(self) -> str:
        return f"{CLIENTS}:{self.clients},{RUNS}:{self.runs}"


def automatic(devices: int, runs: int) -> MeshShape:
    """Divide devices by runs first, which need no communication, then by clients.

    The axis of runs takes the largest number that divides both the devices and the runs, so that
    no device is without work.
    """
    first = math.gcd(devices, runs)
    return MeshShape(devices // first, first)


def parsed(word: str) -> MeshShape:
    """Parse a text such as "clients:4,runs:2"; a missing axis has one device.

    Raises:
      InputError: it has another form, or names another axis.
    """
    sizes: dict[str, int] = {}
    for part in word.split(",") if isinstance(word, str) else [""]:
        name, colon, count = (piece.strip() for piece in part.partition(":"))
        if not colon or not decimal(count) or name in sizes:
            raise InputError(
                f"mesh must be 'auto' or devices by axis, such as {CLIENTS}:4,{RUNS}:2, {RUNS}:4 "
                f"or {CLIENTS}:8, got {shown(word)}."
            )
        if name not in (CLIENTS, RUNS):
            raise unknown_name("axis of the mesh", name, (CLIENTS, RUNS))
        sizes[name] = decimal(count) or 1
    return MeshShape(sizes.get(CLIENTS, 1), sizes.get(RUNS, 1))


def check(mesh: MeshShape, devices: int, where: str) -> None:
    """Raise `InputError` unless a mesh takes `devices` devices; `where` names their source."""
    if mesh.devices != devices:
        raise InputError(
            f"mesh {mesh} takes {mesh.devices} devices, but {where}: the nearest that fits is "
            f"{nearest(mesh, devices)}."
        )


def nearest(mesh: MeshShape, devices: int) -> MeshShape:
    """Return the mesh for a number of devices whose axes have the most similar ratio."""
    wanted = math.log(mesh.clients / mesh.runs)
    fitting = [MeshShape(devices // n, n) for n in range(1, devices + 1) if devices % n == 0]
    return min(fitting, key=lambda one: abs(math.log(one.clients / one.runs) - wanted))
