"""A simulation's programs, lowered for described devices."""

from typing import NamedTuple

import jax

from fedjax_pfl.engine.memory import Memory
from fedjax_pfl.federation.federation import Federation


class Lowered(NamedTuple):
    """A simulation's program for described devices, ready to be compiled.

    Attributes:
      start: makes the states before the first round.
      rounds: a chunk of rounds. Its loops are named after how often their bodies run (see
        `execution.lanes.Counts`); scores are made under the name "evaluation".
      memory: estimated, of all devices together; see `Program.memory`.
      federation: with as many lanes as fit by that estimate.
      host: what lies in host memory, where clients' state does. `rounds` is then one round.
    """

    start: jax.stages.Lowered
    rounds: jax.stages.Lowered
    memory: Memory | None
    federation: Federation
    host: "HostCosts | None" = None


class HostCosts(NamedTuple):
    """Bytes of client state in host memory and of its transfers, for all runs.

    Attributes:
      scores: the program that scores a block of clients.
      blocks: how often it runs, to score all that are scored.
      coming: the next cohort's rows and samples, on the devices while a round runs.
      coming_block: the next block's, while one is scored.
      rows: most that what clients keep takes on the host, after all rounds.
      samples: the data set's, on the host.
      to_device: rows and samples that a round's cohort takes to the devices.
      from_device: rows that a round's cohort brings back.
    """

    scores: jax.stages.Lowered
    blocks: int
    coming: int
    coming_block: int
    rows: int
    samples: int
    to_device: int
    from_device: int
