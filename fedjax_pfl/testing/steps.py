"""Check of recorded local steps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.federation.batching import Schedule
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
      AssertionError: a client took more steps than recorded or than
        `algorithm.max_gradients(federation, rounds)` allows, a schedule is missing in
        `algorithm.schedules(federation)`, or two trainings share a key.
    """
    used: set[Schedule] = set()
    purposes: list[str] = []

    def steps_of(run, federation, t):
        ctx, observer = run.context(federation, t, jnp.int32(rounds)), RoundObserver()
        observed = replace(ctx.cohort, observer=observer)
        state = run.algorithm.init(ctx)
        _, record = run.algorithm.round(replace(ctx, cohort=observed, observer=observer), state)
        used.update(observer.schedules)
        purposes[:] = observer.purposes
        recorded = record.clients["local_steps"]
        return recorded if observer.steps is None else observer.steps, recorded

    run = jax.tree.map(lambda leaf: leaf[0], make_runs(algorithm, federation, (0,)))
    program, total = jax.jit(steps_of), np.zeros(federation.num_clients, np.int64)
    for t in range(rounds):
        taken, recorded = map(np.asarray, program(run, federation, np.int32(t)))
        assert (taken <= recorded).all(), (
            f"the clients took {taken.tolist()} local steps in round {t + 1} and its record has "
            f"{recorded.tolist()}: give each ctx.train the cohort of the one before, as in "
            "ctx.train(models, cohort), and ctx.record the last one's"
        )
        total = total + recorded
    named = algorithm.schedules(federation)
    for schedule in sorted(used - set(named), key=str):
        raise AssertionError(
            f"a round trains with {schedule}, and schedules(federation) names only "
            f"{', '.join(map(str, named)) or 'none'}: add it there"
        )
    most = algorithm.max_gradients(federation, rounds)
    assert (total <= most).all(), (
        f"max_gradients(federation, rounds={rounds}) is {most.tolist()}, and rounds record "
        f"{total.tolist()} local steps"
    )
    twice = sorted({purpose for purpose in purposes if purposes.count(purpose) > 1})
    assert not twice or algorithm.reuses_keys, (
        f"a round trains twice with the key of {twice[0]!r}: give one of them another purpose=, or "
        "declare reuses_keys = True if both are to have the same minibatches"
    )
