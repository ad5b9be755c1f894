"""The end of a simulation without the scores of its rounds, which are a large part of a program."""

import jax

from fedjax_pfl.engine.final_models import Final
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import CAPACITY, SEEDS


def final_of(algorithm, federation, rounds=2, seeds=SEEDS):
    """The `Final` of `simulate`, with one run for each seed."""
    program = _program(algorithm, federation, rounds, seeds)
    return Final(program, program.advance(program.start(), 0, rounds).states)


def final_in(state, algorithm, federation, rounds):
    """The `Final` of the first of `SEEDS` that ended in this state, one of `run_rounds`."""
    program = _program(algorithm, federation, rounds, SEEDS[:1])
    return Final(program, jax.tree.map(lambda leaf: leaf[None], state))


def _program(algorithm, federation, rounds, seeds):
    federation = algorithm.prepare(federation)
    runs = make_runs(algorithm, federation, seeds)
    return Program(runs, federation, rounds, capacity=CAPACITY, scored=())
