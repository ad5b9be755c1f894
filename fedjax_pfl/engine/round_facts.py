"""What a round of an algorithm does, found by tracing it."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedjax_pfl.core import traced_checks
from fedjax_pfl.core.extended_state import algorithm_state
from fedjax_pfl.core.round_observer import RoundFacts, RoundObserver
from fedjax_pfl.engine.evaluation import named_models
from fedjax_pfl.federation.federation import Federation


def round_facts(run: Any, federation: Federation) -> RoundFacts:
    """Trace the initial state, a round and the models of a run; nothing is compiled.

    Args:
      run: a single `Run`, whose hyperparameters are numbers.
      federation: prepared by the algorithm; the noise of a `dp_epsilon` may be unknown.
    """
    if federation.privacy is not None and federation.privacy.noise is None:
        run = replace(run, numbers={**run.numbers, "dp_noise": np.float32(0)})
    found: list[RoundFacts] = []

    def first_round(federation, t, total):
        algorithm, observer, asked = run.algorithm, RoundObserver(), set[str]()
        ctx = replace(run.context(federation, t, total), asked=asked)
        state = traced_checks.checked_init(algorithm, ctx)
        after, _ = traced_checks.checked_round(algorithm, ctx, state, observer)
        named_models(algorithm, ctx, algorithm_state(after), ctx.cohort_of().rows)
        algorithm.served_clients(ctx)
        seen = (frozenset(observer.schedules), tuple(observer.trainings), tuple(observer.uploads))
        found.append(RoundFacts(*seen, reads_num_rounds="num_rounds" in asked))

    jax.eval_shape(first_round, federation, np.int32(0), np.int32(1))
    return found[-1]
