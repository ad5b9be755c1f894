"""Memory maps of this process: Linux limits their number, and each compiled CPU program takes some.

In a process that compiles many programs the compiler would end at the limit, with "LLVM ERROR:
Unable to allocate section memory!".
"""

import itertools
from pathlib import Path

import jax

MAPS, LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
EVERY = 8  # simulations between two checks, each of which takes tens of milliseconds
_calls = itertools.count(1)


def count_maps() -> int:
    """Return the number of maps of this process; 0 if unknown."""
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0


def make_room(several: bool = False) -> bool:
    """Drop all compiled programs once half of the maps are in use; return whether it did.

    Only every eighth call checks, which leaves room for the programs in between, and every call
    for `several` programs. Programs that are used again are compiled again.
    """
    if next(_calls) % EVERY and not several:
        return False
    limit = int(LIMIT.read_text()) if LIMIT.exists() else 0
    if not limit or count_maps() <= limit // 2:
        return False
    jax.clear_caches()
    return True
