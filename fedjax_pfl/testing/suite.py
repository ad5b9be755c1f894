"""Runs of the shared checks on an algorithm."""

from collections.abc import Callable

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import InputError, unknown_name


@checked
def check_algorithm(
    algorithm: Algorithm,
    only: str | None = None,
    show: Callable[[str], None] | None = print,
) -> tuple[str, ...]:
    """Run the shared checks, or a single one, on an algorithm.

    Args:
      algorithm: an instance of a registered algorithm.
      only: name of a check in `CHECKS`; by default all checks run.
      show: called with a line when a check begins and at the end; None to be silent.

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
    for k, name in enumerate(names, 1):
        text = " ".join((CHECKS[name].__doc__ or "").split())
        show(f"{k}/{len(names)} {name}: {text}")
        CHECKS[name](algorithm)
    count = "1 check" if len(names) == 1 else f"{len(names)} checks"
    show(f"{algorithm.name} passes {count}: {', '.join(names)}.")
    return names
