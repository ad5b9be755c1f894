"""Checks that records say what rounds did: finite states, matrices, local steps."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation import mixing
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.context_uploads import ContextUploads
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.record import Record
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.engine.compiled import runs_once
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.tracing import trace_state
from fedjax_pfl.utils.typing import State, Tree

PRODUCTS = ("apply", "weighted_sum", "combine", "masked_average")  # functions (weights, models, ..)


def _observed_round(run: Any, ctx: Context, state: State) -> tuple[Record, RoundObserver]:
    """Run a round from a state; return its record and what was observed."""
    observer = RoundObserver()
    observed = replace(ctx, cohort=replace(ctx.cohort, observer=observer), observer=observer)
    return run.algorithm.round(observed, state)[1], observer


def assert_finite_and_stochastic(algorithm: Algorithm, state: Tree, record: dict) -> None:
    """Assert that a round's state is finite and its mixing matrices are row-stochastic."""
    chex.assert_tree_all_finite(state, custom_message="the state is not finite")
    lost = np.flatnonzero(record["clients"]["nonfinite"]).tolist()
    assert not lost, (
        f"clients {lost} trained, and what the round made of their values is not finite"
    )
    if algorithm.row_stochastic:
        for name, matrix in record["matrices"].items():
            if matrix.shape[-2] > 1 or matrix.any():  # a single row of zeros: nothing aggregated
                mixing.check(matrix, name=name)


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
        ctx = run.context(federation, t, jnp.int32(rounds))
        record, observer = _observed_round(run, ctx, run.algorithm.init(ctx))
        purposes[:] = observer.purposes
        recorded = record.clients["local_steps"]
        return recorded if observer.steps is None else observer.steps, recorded

    run = jax.tree.map(lambda leaf: leaf[0], make_runs(algorithm, federation, (0,)))
    program = runs_once(steps_of, federation.execution.platform)
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


class _Notes:
    """Weights that `mixing` applies to models, and matrices given to `ctx.record`, of one trace."""

    def __init__(self):
        self.applied: list[jax.Array] = []
        self.of_round: list[jax.Array] = []
        self.recorded: dict[str, jax.Array] = {}

    def __enter__(self) -> "_Notes":
        self._trace, self._patches = trace_state(), ExitStack()
        for name in PRODUCTS:
            noted = self._noting(getattr(mixing, name))
            self._patches.enter_context(mock.patch.object(mixing, name, noted))
        used = ContextUploads.matrices_used

        def matrices_used(ctx, cohort, matrices):
            self.recorded = dict(matrices)
            return used(ctx, cohort, matrices)

        self._patches.enter_context(
            mock.patch.object(ContextUploads, "matrices_used", matrices_used)
        )
        return self

    def __exit__(self, *error: Any) -> None:
        self._patches.close()

    def _noting(self, product: Callable) -> Callable:
        @wraps(product)
        def noted(weights, *rest, **options):
            self.applied.append(weights)
            if trace_state() == self._trace:  # others can't leave their branch or loop
                self.of_round.append(weights)
            return product(weights, *rest, **options)

        return noted


def check_matrices(algorithm: Algorithm, federation: Federation, rounds: int) -> None:
    """Compare recorded matrices with the weights that the functions of `mixing` were given.

    A round is only traced: a matrix that is recorded and applied is one object. For others, such as
    the rows of each member's cluster, rounds are computed, each from the initial state, and every
    recorded row must be one that was applied, or that of a client that keeps its model. Weights
    that are applied within an algorithm's own loops and branches are not known.

    Args:
      algorithm: the algorithm.
      federation: a federation prepared by the algorithm.
      rounds: number of rounds.

    Raises:
      AssertionError: a recorded matrix was not applied.
    """
    others: list[str] = []
    unknown = False

    def rows_of(run, federation, t):
        nonlocal unknown
        ctx = run.context(federation, t, jnp.int32(rounds))
        state = run.algorithm.init(ctx)
        with _Notes() as notes:
            record, _ = _observed_round(run, ctx, state)
        applied = set(map(id, notes.applied))
        one = [name for name, matrix in notes.recorded.items() if id(matrix) in applied]
        others[:] = sorted(record.matrices.keys() - set(one))
        unknown = len(notes.of_round) < len(notes.applied)
        rows = [_rows(ctx.cohort, weights) for weights in notes.of_round]
        return {name: record.matrices[name] for name in others}, rows

    run = jax.tree.map(lambda leaf: leaf[0], make_runs(algorithm, federation, (0,)))
    jax.eval_shape(rows_of, run, federation, jnp.int32(0))
    if not others or unknown:
        return
    program = runs_once(rows_of, federation.execution.platform)
    for t in range(rounds):
        recorded, applied = program(run, federation, np.int32(t))
        kept = np.eye(federation.num_clients)
        known = np.concatenate([kept, 0 * kept[:1], *map(np.asarray, applied)])
        for name, matrix in recorded.items():
            rows = np.asarray(matrix).reshape(-1, 1, federation.num_clients)
            same = np.isclose(rows, known, 1e-9, 1e-12)
            if not algorithm.row_stochastic:  # a record may leave out earlier uploads
                same |= rows == 0
            found = same.all(axis=-1).any(axis=-1)
            assert found.all(), (
                f"the recorded matrix {name!r} of round {t + 1} has rows that no function of "
                "`mixing` was given: record the matrix that the models were mixed with; numbers of "
                "clients or of the round are clients= and scalars=; others stay in the state"
            )


def _rows(cohort: Cohort, weights: jax.Array) -> jax.Array:
    """Return the rows of weights over all clients, [k, N]; none for weights over others."""
    count = weights.shape[-1]
    rows = weights.reshape(-1, count)
    if count == cohort.num_clients:
        return rows
    if count != cohort.size:
        return jnp.zeros((0, cohort.num_clients))
    return jax.vmap(lambda row: cohort.spread(row, 0))(rows)
