"""Check that the mixing matrices of records are those that rounds apply."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation import mixing
from fedjax_pfl.core.context_uploads import ContextUploads
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.utils.tracing import trace_state

PRODUCTS = ("apply", "weighted_sum", "combine", "masked_average")  # functions (weights, models, ..)


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
        ctx, observer = run.context(federation, t, jnp.int32(rounds)), RoundObserver()
        observed = replace(ctx.cohort, observer=observer)
        state = run.algorithm.init(ctx)
        with _Notes() as notes:
            _, record = run.algorithm.round(replace(ctx, cohort=observed, observer=observer), state)
        one = [name for name, matrix in notes.recorded.items() if _is_in(matrix, notes.applied)]
        others[:] = sorted(record.matrices.keys() - set(one))
        unknown = len(notes.of_round) < len(notes.applied)
        rows = [_rows(ctx.cohort, weights) for weights in notes.of_round]
        return {name: record.matrices[name] for name in others}, rows

    run = jax.tree.map(lambda leaf: leaf[0], make_runs(algorithm, federation, (0,)))
    jax.eval_shape(rows_of, run, federation, jnp.int32(0))
    if not others or unknown:
        return
    program = jax.jit(rows_of)
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
                "`mixing` was given: record the matrix that the models were mixed with"
            )


def _is_in(matrix: jax.Array, applied: list[jax.Array]) -> bool:
    return any(matrix is weights for weights in applied)


def _rows(cohort: Cohort, weights: jax.Array) -> jax.Array:
    """Return the rows of weights over all clients, [k, N]; none for weights over others."""
    count = weights.shape[-1]
    rows = weights.reshape(-1, count)
    if count == cohort.num_clients:
        return rows
    if count != cohort.size:
        return jnp.zeros((0, cohort.num_clients))
    return jax.vmap(lambda row: cohort.spread(row, 0))(rows)
