"""Which clients' rows an algorithm's rounds read."""

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine import host_reads
from fedjax_pfl.engine.host_program import HostProgram
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.federation.federation import Federation


class _Small(HostProgram):
    """Client state of toys in host memory."""

    small = 16


def rows_read(algorithm: Algorithm, federation: Federation) -> str:
    """Return whose state and samples a round reads: "cohort", "others" or "everyone".

    Args:
      algorithm: the algorithm.
      federation: of which not all clients take part in a round.
    """
    federation = algorithm.prepare(federation)
    program = Program(make_runs(algorithm, federation, (0,)), federation, rounds=2)
    return host_reads.rows_read(_Small(**vars(program)))
