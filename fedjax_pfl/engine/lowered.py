"""A simulation's programs, lowered for described devices."""

from typing import NamedTuple

import jax

from fedjax_pfl.federation.federation import Federation


class Lowered(NamedTuple):
    """A simulation's program for described devices, ready to be compiled.

    Attributes:
      start: program of the states before the first round.
      rounds: program of a chunk of rounds, or of one round if clients' state is in host memory.
      federation: the federation with the program's lanes.
    """

    start: jax.stages.Lowered
    rounds: jax.stages.Lowered
    federation: Federation
