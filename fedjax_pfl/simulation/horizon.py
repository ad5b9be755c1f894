"""Whether the rounds of a simulation depend on how many there are in all."""

import re
from dataclasses import replace

import jax
import numpy as np

from fedjax_pfl.contract import checks
from fedjax_pfl.simulation.program import Program

# Two numbers of rounds that no program has for another reason.
ONE, OTHER = 30_011, 30_013


def depends_on_rounds(program: Program, done: int, before: int) -> bool:
    """Whether the first `done` rounds of `program` are others than if it had `before` rounds.

    Scores are not looked at: that of the last round may be another one.
    """
    federation = program.federation
    if federation.lr_schedule is not None:
        one, other = (federation.rate_factors(n)[:done] for n in (before, program.rounds))
        if not np.array_equal(one, other):
            return True
        program = replace(program, federation=replace(federation, lr_schedule=None))
    return _traced(program, ONE) != _traced(program, OTHER)


def _traced(program: Program, total: int) -> tuple:
    """One round of one run in JAX's intermediate language, and the constants in it."""
    first = jax.tree.map(lambda leaf: leaf[0], program.runs)
    number = np.int32(total)

    def one_round(run, federation, t):
        ctx = run.context(federation, t, number)
        return checks.checked_round(run.algorithm, ctx, checks.checked_init(run.algorithm, ctx))

    # The federation is an argument: its arrays may lie in other processes too.
    traced = jax.make_jaxpr(one_round)(first, program.federation, np.int32(0))
    text = re.sub(r" at 0x[0-9a-f]+", "", str(traced))
    return text, tuple(np.asarray(const).tobytes() for const in traced.consts if const.size < 64)
