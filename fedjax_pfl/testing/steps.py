"""Check of recorded local steps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.federation.federation import Federation


def check_steps(algorithm: Algorithm, federation: Federation, rounds: int) -> None:
    """Compare the local steps of rounds, each from the initial state, with their records.

    The program returns only steps, so XLA removes most of the training. Steps of an algorithm's own
    `ctx.run_clients` are not checked, since a loop over samples need not be training.

    Args:
      algorithm: the algorithm.
      federation: a federation prepared by the algorithm.
      rounds: number of rounds.

    Raises:
      AssertionError: a client took more steps than recorded, or two trainings share a key.
    """
    purposes: list[str] = []

    def steps_of(run, federation, t):
        ctx, observer = run.context(federation, t, jnp.int32(rounds)), RoundObserver()
        observed = replace(ctx.cohort, observer=observer)
        state = run.algorithm.init(ctx)
        _, record = run.algorithm.round(replace(ctx, cohort=observed, observer=observer), state)
        purposes[:] = observer.purposes
        recorded = record.clients["local_steps"]
        return recorded if observer.steps is None else observer.steps, recorded

    run = jax.tree.map(lambda leaf: leaf[0], make_runs(algorithm, federation, (0,)))
    program = jax.jit(steps_of)
    for t in range(rounds):
        taken, recorded = map(np.asarray, program(run, federation, np.int32(t)))
        assert (taken <= recorded).all(), (
            f"the clients took {taken.tolist()} local steps in round {t + 1} and its record has "
            f"{recorded.tolist()}: give each ctx.train the cohort of the one before, as in "
            "ctx.train(models, cohort), and ctx.record the last one's"
        )
    twice = sorted({purpose for purpose in purposes if purposes.count(purpose) > 1})
    assert not twice, (
        f"a round trains twice with the key of {twice[0]!r}: give one of them another purpose=, or "
        "same_minibatches=True if both are to have the same minibatches"
    )
