"""Check that an algorithm declares whose state and samples its rounds need (`Algorithm.reads`)."""

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.compiled import models
from fedjax_pfl.engine.host_program import HostProgram
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.utils.trees import is_missing_rows


class _Cohort(HostProgram):
    """Offloaded state of toys, in which no client reads others' rows."""

    small, reads = 16, "cohort"  # pyright: ignore[reportAssignmentType] - not read from state


class _Others(_Cohort):
    reads = "others"  # pyright: ignore[reportAssignmentType] - not read from state


def check_reads(algorithm: Algorithm, federation: Federation) -> None:
    """Trace programs with offloaded state, as declared and with one declaration less.

    Args:
      federation: of which not all clients take part in a round.

    Raises:
      AssertionError: a round, or scoring, needs more than is declared, or less would do.
    """
    federation = algorithm.prepare(federation)
    program = Program(make_runs(algorithm, federation, (0,)), federation, rounds=2)
    cohort, least = _error(_Cohort(**vars(program))), "cohort"
    if cohort is not None:
        least = "others" if _error(_Others(**vars(program))) is None else "everyone"
    declared = f"`reads` is {algorithm.reads!r}"
    assert cohort is not None or algorithm.reads == least, f"{declared} and 'cohort' suffices"
    assert algorithm.reads == least, (
        f"{declared} and must be {least!r}, or models need samples of their clients and "
        f"models_read_samples must be True: {cohort}"
    )


def _error(needs: HostProgram) -> str | None:
    """Return why the programs can't be traced, or None."""
    try:
        for call in (*needs.calls(), needs.call_of_block(models, needs.splits.models)):
            call.trace()
    except (TypeError, AttributeError, ValueError) as error:
        if not is_missing_rows(error):
            raise
        return str(error)
    return None
