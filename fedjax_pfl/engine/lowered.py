"""A simulation's programs, lowered for described devices."""

from typing import NamedTuple

import jax

from fedjax_pfl.federation.federation import Federation


class Lowered(NamedTuple):
    """A simulation's program for described devices, ready to be compiled.

    Attributes:
      start: program of the states before the first round.
      rounds: program of a chunk of rounds, or of one round if `host` is set. Names of loops contain
        the number of iterations (`execution.packed_vmap.Counts`); scoring has the name
        "evaluation".
      federation: the federation with the program's lanes.
      host: costs of client state in host memory, if it is there.
    """

    start: jax.stages.Lowered
    rounds: jax.stages.Lowered
    federation: Federation
    host: "HostCosts | None" = None


class HostCosts(NamedTuple):
    """Bytes of client state in host memory and of its transfers, for all runs.

    Attributes:
      scores: program that scores a block of clients.
      blocks: number of blocks to score.
      coming: rows and samples of the next cohort, on the devices during a round.
      coming_block: rows and samples of the next block, on the devices during scoring.
      rows: largest size of all clients' rows on the host, after all rounds.
      samples: samples of the data set on the host.
      to_device: rows and samples of a cohort that move to the devices in a round.
      from_device: rows of a cohort that move back in a round.
    """

    scores: jax.stages.Lowered
    blocks: int
    coming: int
    coming_block: int
    rows: int
    samples: int
    to_device: int
    from_device: int
