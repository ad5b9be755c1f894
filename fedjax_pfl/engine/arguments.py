"""Checks of the arguments of `simulate` before anything is compiled."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core import traced_checks
from fedjax_pfl.core.algorithm_registry import validate
from fedjax_pfl.core.context import Context
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.core.requirements import check_requirements
from fedjax_pfl.core.sample_privacy import check_sample_privacy, check_strict
from fedjax_pfl.core.upload_checks import check_uploaded, check_uploads
from fedjax_pfl.engine.callbacks import Callback, StopCallback, check_takes_progress
from fedjax_pfl.engine.host_program import HostProgram
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import MAX_RUNS, Run, converted, make_runs, one_run, served
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.optimizers import check_update
from fedjax_pfl.federation.regularizers import ExtraLoss
from fedjax_pfl.utils.conversions import is_list, number
from fedjax_pfl.utils.errors import InputError, require, require_hashable, require_whole
from fedjax_pfl.utils.jax_flags import check_jax_flags
from fedjax_pfl.utils.typing import State

CHUNK = 50  # rounds in one call of a program, at most


def checked_program(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int = 1,
    *,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Sequence[Any]] | None = None,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    eval_every: int = 1,
    chunk: int = CHUNK,
) -> Program:
    """Return the program of a simulation with checked arguments of `simulate`; nothing is compiled.

    Its federation is the one prepared by the algorithm.

    Raises:
      InputError: an argument that `simulate` refuses.
    """
    check_jax_flags()
    for name, given in (("rounds", rounds), ("eval_every", eval_every), ("chunk", chunk)):
        require_whole(name, given, 1)
    _check_seeds(seeds)
    if adapt is not None:
        adapt = adapt.checked()
        require_hashable("adapt", adapt)
        if adapt.optimizer is not None:
            shapes = federation.model_shapes["params"]
            check_update("optimizer of adaptation", adapt.optimizer, shapes)
    algorithm = converted(algorithm)  # before it computes with its numbers
    validate(algorithm)
    check_requirements(algorithm, federation)
    federation = algorithm.prepare(federation)
    algorithm.check(federation)
    check_sample_privacy(algorithm, federation)
    check_uploads(algorithm, federation)
    parts = federation.uploads, federation.aggregator, federation.sample_privacy
    facts = None
    if any(part is not None for part in parts) or not federation.schedule.shuffle:
        facts = round_facts(one_run(algorithm), federation)
        check_uploaded(algorithm, federation, facts)
        check_strict(algorithm, federation, facts)
        for schedule in facts.schedules:
            schedule.check_counts(federation.data.train.capacity, rounds)
    runs = make_runs(algorithm, federation, seeds, settings, rounds, adapt, facts)
    federation = federation.with_devices(federation.execution.shared(len(runs.seed)))
    _check_steps(algorithm, federation, rounds, adapt)
    added = federation.training.extra_loss
    if added is not None and not _uses_extra_loss(runs, federation, added):
        raise InputError(
            f"{algorithm.name} has its own local steps, to which no extra loss can be added."
        )
    if federation.training.keep_optimizer_state:  # traced, so that what can't keep them is refused
        jax.eval_shape(lambda *given: _first_state(*given)[-1], runs, federation)
    if score_clients is None:
        scored = _benign_rows(runs, federation)
    else:
        scored = _scored_rows(score_clients, runs, federation)
    program = Program(runs, federation, rounds, eval_every, chunk, adapt, scored, facts)
    return HostProgram.of(program) if federation.execution.client_state == "host" else program


def checked_callbacks(callbacks: Sequence[Callback], stop: Any) -> list[Callback]:
    """Return the callbacks, ending with `stop` unless it is None.

    Raises:
      InputError: a callback can't be called with a `Progress`.
    """
    allowed = "a list of objects with a method on_round_end(progress)"
    for one in callbacks:
        there = not isinstance(one, type) and callable(getattr(one, "on_round_end", None))
        require(there, "callbacks", one, allowed)
        check_takes_progress("callbacks", one.on_round_end, allowed)
    if stop is None:
        return [*callbacks]
    check_takes_progress("stop", stop, "a function of a Progress that returns a bool, or None")
    return [*callbacks, StopCallback(stop)]


def checked_seconds(chunk_seconds: Any) -> float:
    """Return `chunk_seconds`, a number of at least 0 or infinity.

    Raises:
      InputError: another value.
    """
    if isinstance(chunk_seconds, float) and chunk_seconds == math.inf:
        return chunk_seconds
    return number("chunk_seconds", chunk_seconds, "at least 0")


def checked_matrix_rounds(matrix_rounds: Sequence[int] | None, rounds: int) -> list[int]:
    """Return the rounds to record matrices in; by default the first, middle and last.

    Raises:
      InputError: no list of rounds in 1..rounds.
    """
    if matrix_rounds is None:
        matrix_rounds = (1, (rounds + 1) // 2, rounds)
    allowed = f"rounds in 1..{rounds}"
    require(is_list(matrix_rounds), "matrix_rounds", matrix_rounds, f"a list of {allowed}")
    bad = [r for r in matrix_rounds if not (_whole(r) and 1 <= r <= rounds)]
    require(not bad, "matrix_rounds", bad, allowed)
    return sorted({int(r) for r in matrix_rounds})


def _check_seeds(seeds: Sequence[int]) -> None:
    allowed = "one or more whole numbers in 0..2^31-1"
    require(is_list(seeds) and len(seeds) > 0, "seeds", seeds, allowed)
    require(len(seeds) <= MAX_RUNS, "seeds", seeds, f"at most {MAX_RUNS:,}")
    require(all(_whole(s) and 0 <= s < 2**31 for s in seeds), "seeds", seeds, allowed)
    # The same run twice would count twice in means, and narrow their intervals.
    require(len({int(s) for s in seeds}) == len(seeds), "seeds", seeds, "different numbers")


def _check_steps(algorithm, federation, rounds: int, adapt: Adaptation | None) -> None:
    """Raise `InputError` for no local step, too many steps to count, or rounds without a rate."""
    federation.training.rate_factors(rounds)
    if not algorithm.has_step(federation).any():
        raise InputError(f"No client would take a local step: {_why_no_step(federation)}.")
    capacity = federation.data.train.capacity
    federation.schedule.check_counts(capacity, rounds)
    for how in filter(None, (adapt, algorithm.adaptation())):
        how.schedule(federation.schedule).check_counts(capacity)


def _why_no_step(federation: Federation) -> str:
    schedule, most = federation.schedule, int(np.asarray(federation.data.train.size).max())
    if schedule.steps == 0 or (schedule.steps is None and schedule.epochs == 0):
        return f"{'local_epochs' if schedule.steps is None else 'local_steps'} is 0"
    if most == 0:
        return "none has training samples"
    return (
        f"drop_last leaves out batches of fewer than {schedule.samples_per_step} samples, and "
        f"none has more than {most}; take a smaller batch_size, or keep the last batch"
    )


def _uses_extra_loss(runs: Run, federation: Federation, added: ExtraLoss) -> bool:
    """Return whether a round uses `added`, the federation's extra loss; only traced.

    Raises:
      InputError: the loss needs features that the model does not name.
    """
    calls = []

    class RecordsCalls(ExtraLoss):
        @functools.wraps(type(added).__call__)  # with a key if it takes one
        def __call__(self, *args, **key):
            calls.append(True)
            return added(*args, **key)

    def first_round(runs, federation):
        run, ctx, state = _first_state(runs, federation.replace_training(extra_loss=RecordsCalls()))
        return traced_checks.checked_round(run.algorithm, ctx, state)

    jax.eval_shape(first_round, runs, federation)
    return bool(calls)


def _first_state(runs: Run, federation: Federation) -> tuple[Run, Context, State]:
    """Return (the first run, its first round, its state before it); only to be traced.

    Raises:
      InputError: see `checked_init`.
    """
    run = jax.tree.map(lambda leaf: leaf[0], runs)
    ctx = run.context(federation, jnp.int32(0), jnp.int32(1))
    return run, ctx, traced_checks.checked_init(run.algorithm, ctx)


def _benign_rows(runs: Run, federation: Federation) -> tuple[int, ...] | None:
    """Return the rows of benign clients with a model; None if none attacks."""
    stage, data = federation.uploads, federation.data
    attacking = None if stage is None else stage.attacking(data.ids)
    if attacking is None:
        return None
    modelled = np.all(served(runs, federation), axis=0)
    return tuple(np.flatnonzero(~np.asarray(attacking) & modelled).tolist())


def _scored_rows(clients: Sequence[int], runs: Run, federation: Federation) -> tuple[int, ...]:
    """Return the ascending rows of the clients to score.

    Raises:
      InputError: no client, an unknown one, or one without test samples or without a model of the
        algorithm.
    """
    ids = np.asarray(federation.data.ids)
    require(is_list(clients) and len(clients) > 0, "score_clients", clients, "at least one client")
    unknown = [c for c in clients if not (_whole(c) and c in ids)]
    require(not unknown, "score_clients", unknown, f"clients in {ids.min()}..{ids.max()}")
    rows = np.flatnonzero(np.isin(ids, clients))
    for known, allowed in (
        (np.asarray(federation.data.test.size) > 0, "clients with test samples"),
        (np.all(served(runs, federation), axis=0), "clients that the algorithm makes a model for"),
    ):
        without = ids[rows[~known[rows]]].tolist()
        require(not without, "score_clients", without, allowed)
    return tuple(rows.tolist())


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
