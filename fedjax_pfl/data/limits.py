"""Limits on free memory, checked before arrays are allocated."""

import contextlib
import os
import sys
from pathlib import Path

from fedjax_pfl.utils.errors import InputError, gigabytes

# Smaller arrays aren't checked: that would take longer than allocating them.
_SMALL = 2**26
_CGROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def require_memory(what: str, count: int) -> None:
    """Raise `InputError` unless `count` bytes of host memory are free.

    Args:
      what: beginning of the message, such as "The 400 images of D/train.parquet".
      count: number of bytes, as a Python integer.
    """
    if count < _SMALL:
        return
    room = free()
    if room is not None and count > room:
        raise InputError(
            f"{what} would take {gigabytes(count)} of memory, but {gigabytes(room)} are free."
        )


def free() -> int | None:
    """Return the bytes of host memory that this process may still take, or None if unknown."""
    rooms = [_unused(), _group(), _address_space()]
    return min((max(room, 0) for room in rooms if room is not None), default=None)


def _unused() -> int | None:
    """Return the memory that Linux estimates to be available; elsewhere all memory."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    with contextlib.suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _group() -> int | None:
    """Return the bytes that a container's limit leaves; None without a limit."""
    root, rooms = Path("/sys/fs/cgroup"), []
    for line in _lines("/proc/self/cgroup"):
        _, controllers, place = line.split(":", 2)
        if controllers in ("", "memory"):
            for base in (root / controllers, root / controllers / place.strip("/")):
                rooms += [_limit(base, *names) for names in _CGROUPS]
    return min((room for room in rooms if room is not None), default=None)


def _limit(folder: Path, limit: str, used: str, files: str) -> int | None:
    numbers = [line for name in (limit, used) for line in _lines(folder / name)]
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        return None  # no such file, or "max"
    pairs = (line.split() for line in _lines(folder / "memory.stat"))
    usage = dict(pair for pair in pairs if len(pair) == 2)
    return int(numbers[0]) - int(numbers[1]) + int(usage.get(files, 0))  # cache is freed first


def _address_space() -> int | None:
    """Return the bytes that `ulimit -v` leaves; None without a limit."""
    if sys.platform != "linux":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    taken = int(next(iter(_lines("/proc/self/statm")), "0").split()[0])
    return limit - taken * resource.getpagesize()


def _lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except (OSError, ValueError):
        return []
