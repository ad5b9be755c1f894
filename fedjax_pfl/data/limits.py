"""Limits on free memory, checked before arrays are allocated."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import psutil

from fedjax_pfl.utils.errors import InputError, gigabytes

# Smaller arrays aren't checked: that would take longer than allocating them.
_SMALL = 2**26
# Files of a control group by version: its limit, what it uses, and its file caches.
_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def require_memory(what: str, count: int) -> None:
    """Raise `InputError` unless `count` bytes of host memory are free.

    Args:
      what: beginning of the message, such as "The 400 images of D/train.parquet".
      count: number of bytes, as a Python integer.
    """
    if count < _SMALL:
        return
    room = free()
    if count > room:
        raise InputError(
            f"{what} would take {gigabytes(count)} of memory, but {gigabytes(room)} are free."
        )


def free() -> int:
    """Return the bytes of host memory that this process may still take."""
    rooms = [psutil.virtual_memory().available, *_left_in_groups()]
    if hasattr(psutil, "RLIMIT_AS"):  # on Linux
        process = psutil.Process()
        limit, _ = process.rlimit(psutil.RLIMIT_AS)
        if limit != psutil.RLIM_INFINITY:
            rooms.append(limit - process.memory_info().vms)
    return max(min(rooms), 0)


def _left_in_groups() -> Iterator[int]:
    """Yield what the limits of this process' control groups leave, such as a container's."""
    groups = Path("/proc/self/cgroup")
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, version, place = line.split(":", 2)
        if version in _FILES:
            root = Path("/sys/fs/cgroup", version)
            for folder in (root, root / place.strip("/")):
                with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
                    yield _left(folder, version)


def _left(group: Path, version: str) -> int:
    """Return the bytes that a control group's limit leaves; file caches are freed first."""
    limit, used, cached = _FILES[version]
    numbers = [int((group / name).read_text()) for name in (limit, used)]
    caches = re.findall(rf"^{cached} (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    return numbers[0] - numbers[1] + sum(map(int, caches))
