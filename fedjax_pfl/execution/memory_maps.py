"""Memory maps of this process: Linux bounds their number, and programs of XLA's CPU take hundreds.

A process that simulates one algorithm after the other would come to the bound, and the compiler
would end it ("LLVM ERROR: Unable to allocate section memory!").
"""

import itertools
from pathlib import Path

import jax

MAPS, LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
EVERY = 8  # simulations between two looks: reading so many lines takes tens of milliseconds
_asked = itertools.count(1)


def held() -> int:
    """Maps of this process; 0 where the system does not say."""
    return MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0


def make_room() -> bool:
    """Lets go of all compiled programs where half of the maps are taken; whether it did.

    It looks at every eighth call, which leaves room for the programs of those between. What is used
    again is compiled again.
    """
    if next(_asked) % EVERY:
        return False
    limit = int(LIMIT.read_text()) if LIMIT.exists() else 0
    if not limit or held() <= limit // 2:
        return False
    jax.clear_caches()
    return True
