"""Runs of the shared checks on an algorithm."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.execution.platforms import cores
from fedjax_pfl.testing.checks import CHECKS, PROGRAMS
from fedjax_pfl.testing.toys import in_double_precision
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, unknown_name


@checked
def check_algorithm(
    algorithm: Algorithm,
    only: str | None = None,
    show: Callable[[str], None] | None = print,
) -> tuple[str, ...]:
    """Run the shared checks, or a single one, on an algorithm; cheap ones come first.

    They take about a minute on two idle cores, most of which compiles programs.

    Args:
      algorithm: an instance of a registered algorithm.
      only: name of a check in `CHECKS`; by default all checks run.
      show: called with a line before the first check, when a check begins and at the end; None to
        be silent.

    Returns:
      The names of the passed checks.

    Raises:
      InputError: unknown check, or `algorithm` is not an instance of a registered algorithm.
      TypeError: a function of the algorithm returns a wrong type.
      AssertionError: the algorithm fails a check.
    """
    if not vars(type(algorithm)).get("name"):
        raise InputError(
            f"{type(algorithm).__name__} is not a registered algorithm: decorate the class, a "
            "subclass of Algorithm, with @algorithm('its_name')."
        )
    if only is not None and only not in CHECKS:
        raise unknown_name("check", only, CHECKS)
    show = show or (lambda line: None)
    names = tuple(name for name in CHECKS if only in (None, name))
    count = "1 check" if len(names) == 1 else f"{len(names)} checks"
    began = time.perf_counter()
    show(f"{count} of {algorithm.name}: about {3 * len(names)} s on two idle cores, to compile.")
    compiling: dict[str, Callable[[], float]] = {}
    with ThreadPoolExecutor(cores()) as pool:
        for k, name in enumerate(names):
            text = " ".join((CHECKS[name].__doc__ or "").split())
            show(f"{k + 1}/{len(names)} {name}, {time.perf_counter() - began:.0f} s so far: {text}")
            for one in names[k : k + 1 + cores() * (k > 0)]:
                if one in PROGRAMS and one not in compiling:
                    compiling[one] = _begin(PROGRAMS[one], algorithm, pool)
            compiling.get(name, float)()
            CHECKS[name](algorithm)
    seconds = time.perf_counter() - began
    show(f"{algorithm.name} passes {count} in {seconds:.0f} s: {', '.join(names)}.")
    return names


@in_double_precision
def _begin(make: Callable, algorithm: Algorithm, pool: ThreadPoolExecutor) -> Callable[[], float]:
    """Begin to compile a check's program; return a function that waits for it."""
    with suppress(Exception):  # the check raises it
        program = make(algorithm)
        return float if program is None else program.compile_in(pool)
    return float
