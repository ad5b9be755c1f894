"""Limits of the Python stack frames in the locations of a program's operations."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

FRAMES = 4


@contextmanager
def short_locations() -> Iterator[None]:
    """Context in which compiled programs carry few stack frames; a lower limit is kept.

    XLA joins the frames of nested loops and calls when it inlines them. With JAX's limit of 100
    frames, libtpu's compilation of nested loops for several chips may take minutes instead of
    seconds.
    """
    config: Any = jax.config
    before = config.jax_traceback_in_locations_limit
    config.update("jax_traceback_in_locations_limit", FRAMES if before < 0 else min(before, FRAMES))
    try:
        yield
    finally:
        config.update("jax_traceback_in_locations_limit", before)
