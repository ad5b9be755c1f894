"""The shared checks of algorithms.

Each check runs a few rounds of a tiny federation in double precision. Its clients have different
numbers of samples: one has a single sample, one no test samples. Compilation dominates the time of
checks, so most of them share the program of `_partial`, and the others say which programs to
compile while earlier checks run. Cheap checks come first.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial

import jax
import numpy as np

from fedjax_pfl.core.algorithm_registry import is_static
from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.final_models import Final
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.simulation import Simulation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.testing.programs import quick
from fedjax_pfl.testing.reads import rows_read
from fedjax_pfl.testing.record_checks import (
    assert_finite_and_stochastic,
    check_matrices,
    check_steps,
)
from fedjax_pfl.testing.toys import (
    CAPACITY,
    ROUNDS,
    SEEDS,
    TRAIN_SIZES,
    assert_close,
    count_compilations,
    first_run,
    in_double_precision,
    run_rounds,
    states_of,
    toy_for,
    toy_program,
    without_rows,
)
from fedjax_pfl.testing.withheld import (
    CLIENTS,
    SUMS,
    exchange_uploads,
    gradients_program,
    uploads_program,
    withhold_gradients,
    withhold_uploads,
)
from fedjax_pfl.utils.structs import Broadcast, client_axes, permute_clients

CHECKS: dict[str, Callable[[Algorithm], None]] = {}
PROGRAMS: dict[str, Callable[[Algorithm], Program | Simulation | None]] = {}


def check(program: Callable[[Algorithm], Program | Simulation | None] | None = None):
    """Add `fn(algorithm)`, in double precision; it raises `AssertionError` with a message.

    Args:
      program: returns the slowest program to compile that no earlier check has, or None.
    """

    def add(fn: Callable[[Algorithm], None]) -> Callable[[Algorithm], None]:
        CHECKS[fn.__name__] = in_double_precision(fn)
        if program is not None:
            PROGRAMS[fn.__name__] = in_double_precision(program)
        return fn

    return add


def _of(make: Callable[[Algorithm], Federation], **options) -> Callable[[Algorithm], Program]:
    return lambda algorithm: toy_program(algorithm, make(algorithm), **options)


def _partial(algorithm: Algorithm, **options) -> Federation:
    """Return a federation of five clients, of which three take part in a round."""
    return toy_for(algorithm, participation=0.6, local_epochs=2, **options)


def _everyone(algorithm: Algorithm, **options) -> Federation:
    return toy_for(algorithm, **options)


def _vectorized(algorithm: Algorithm) -> Federation:
    return _partial(algorithm, client_execution="vmap", seed_execution="vmap")


def _padded(algorithm: Algorithm, padding: int = 0) -> Federation:
    return _partial(algorithm, padding=padding)


def _alone(algorithm: Algorithm) -> Federation:
    return toy_for(algorithm, (6,), (3,))


def _late(algorithm: Algorithm, **options) -> Federation:
    return toy_for(algorithm, stragglers={1: 1, 3: 2}, drop_last=True, **options)


def _swept(algorithm: Algorithm) -> Program:
    rates = {"learning_rate": (0.3, 0.1)}
    return quick(checked_program(algorithm, _partial(algorithm), 2, settings=rates, chunk=CAPACITY))


def _simulation(algorithm: Algorithm) -> Simulation:
    return Simulation(algorithm, _partial(algorithm), seeds=SEEDS)


@check(_of(_partial))
def partial_participation(algorithm: Algorithm) -> None:
    """Check absent clients' rows, row-stochastic matrices and finite states."""
    states, records = run_rounds(algorithm, _partial(algorithm))
    axes = client_axes(states[0])
    moved = set()
    for t, record in enumerate(records):
        present = record["clients"]["participated"]
        for field in fields(states[0]):
            if axes[field.name] != 1 or not algorithm.absent_kept:
                continue
            before, after = getattr(states[t], field.name), getattr(states[t + 1], field.name)
            for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
                np.testing.assert_array_equal(
                    new[~present],
                    old[~present],
                    err_msg=f"{field.name} of absent clients in round {t + 1}",
                )
        moved |= set(np.flatnonzero(present).tolist())
        steps = record["clients"]["local_steps"]
        idle = not steps[~present].any() or not algorithm.absent_idle
        assert idle, f"local steps of absent clients in round {t + 1}: {steps}"
        assert_finite_and_stochastic(algorithm, states[t + 1], record)
    assert moved, "no client took part in any round"


@check()
def permutation(algorithm: Algorithm) -> None:
    """Check that the order of clients does not matter, only their permanent ids."""
    order = np.array([3, 0, 4, 1, 2])
    states, records = run_rounds(algorithm, _partial(algorithm))
    moved, measured = run_rounds(algorithm, _partial(algorithm, order=order))
    assert_close(moved[-1], permute_clients(states[-1], order), "permuted clients")
    name = "personalized/test/accuracy"
    assert_close(measured[-1]["scores"][name], records[-1]["scores"][name][order], name)


@check()
def divergence(algorithm: Algorithm) -> None:
    """Check that a client whose training overflows is reported and affects no other."""
    _diverging(algorithm, _partial)


@check()
def others_data(algorithm: Algorithm) -> None:
    """Check that samples of idle absent clients and of diverged ones do not affect others."""
    if algorithm.absent_idle:
        _, records = run_rounds(algorithm, _partial(algorithm), 1)
        absent = np.flatnonzero(~records[0]["clients"]["participated"]).tolist()
        _unchanged_by(algorithm, _partial, absent, "absent")
    _unchanged_by(algorithm, _partial, [1], "diverged", diverging=1)
    if (
        rows_read(algorithm, _partial(algorithm)) == "cohort"
    ):  # others weight the last uploads of absent clients by size too
        _unchanged_by(algorithm, _partial, [1], "diverged", fewer=[1], diverging=1)


def _unchanged_by(
    algorithm: Algorithm,
    make: Callable[..., Federation],
    who: list[int],
    what: str,
    fewer: Sequence[int] = (),
    **options,
) -> None:
    """Assert that other samples of the clients `who` do not change the others' state.

    Clients in `fewer` have one sample less, too. Only the server's state is compared then: a client
    may weight others by their sizes before they train.
    """
    before, after = (
        run_rounds(algorithm, make(algorithm, **changes, **options), 1)[0][-1]
        for changes in ({}, {"changed": who, "fewer": fewer})
    )
    others = range(len(TRAIN_SIZES)) if fewer else who
    message = f"the samples of {what} clients {who} changed the state of the server or of others"
    assert_close(without_rows(after, others), without_rows(before, others), message, 0)


@check()
def models_of_some_clients(algorithm: Algorithm) -> None:
    """Check that models of some clients are the same rows as in the models of all."""
    program = toy_program(algorithm, _partial(algorithm))
    final = Final(program, program.advance(program.start(), 0, ROUNDS)[0])
    everybody, rows = final.models(), [3, 0]
    for name, some in final.models(rows).items():
        every = everybody[name]
        if not isinstance(every, Broadcast):
            every = jax.tree.map(lambda leaf: leaf[:, np.array(rows)], every)
        assert_close(some, every, f"{name} models of clients {rows}")


@check()
def recorded_matrices(algorithm: Algorithm) -> None:
    """Check that recorded mixing matrices are those that models were mixed with."""
    check_matrices(algorithm, algorithm.prepare(_partial(algorithm)), ROUNDS)


@check()
def recorded_steps(algorithm: Algorithm) -> None:
    """Check that every step of `ctx.train` is recorded, and has a random key of its own."""
    check_steps(algorithm, algorithm.prepare(_partial(algorithm)), ROUNDS)


@check(_of(_padded, scored=()))
def padding(algorithm: Algorithm) -> None:
    """Check that padding rows of a client's last minibatch have no effect."""
    made = (_padded(algorithm, padding) for padding in (0, 2))
    before, after = (states_of(algorithm, federation, 2)[-1] for federation in made)
    assert_close(after, before, "padding rows of minibatches changed the state", 0)


@check(_of(_alone))
def one_client(algorithm: Algorithm) -> None:
    """Check that a federation of a single client runs, with rows that sum to one."""
    states, records = run_rounds(algorithm, _alone(algorithm))
    assert_finite_and_stochastic(algorithm, states[-1], records[-1])


@check(_of(_late))
def stragglers(algorithm: Algorithm) -> None:
    """Check that late clients, and clients too small for a step, do no harm."""
    states, records = run_rounds(algorithm, _late(algorithm))
    assert_finite_and_stochastic(algorithm, states[-1], records[-1])
    _unchanged_by(algorithm, _late, [1, 3], "late")


@check(_of(_everyone))
def divergence_with_all_clients(algorithm: Algorithm) -> None:
    """Check divergence with full participation."""
    _diverging(algorithm, _everyone)


def _diverging(algorithm: Algorithm, make: Callable[..., Federation]) -> None:
    bad = 1  # in every cohort of `_partial`
    states, records = run_rounds(algorithm, make(algorithm, diverging=bad))
    came = [bool(record["clients"]["participated"][bad]) for record in records]
    lost = [np.flatnonzero(record["clients"]["diverged"]).tolist() for record in records]
    assert any(lost), f"client {bad}'s training overflows, but it never diverged"
    rounds = zip(states[1:], records, came, lost, strict=True)
    for state, record, present, diverged in rounds:
        assert_finite_and_stochastic(algorithm, state, record)
        expected = ([bad],) if present else ([], [bad])[: 1 if algorithm.absent_idle else 2]
        assert diverged in expected, f"diverged: {diverged}, not client {bad}"
        weights = record["matrices"].get("mixing")  # no other client mixes the diverged model
        if diverged and weights is not None:
            others = np.arange(weights.shape[-2]) != bad if weights.shape[-2] > 1 else [True]
            mixed = weights[..., others, bad].any()
            message = (
                f"client {bad} diverged and was mixed into other clients' models: give members "
                "that are not in cohort.mask the weight 0, as mixing.by_size(ctx.sizes(), "
                "cohort.mask) does"
            )
            assert not mixed, message
    for name, axes in client_axes(states[0]).items():
        if axes == 1 and algorithm.absent_kept:
            pairs = (jax.tree.leaves(getattr(s, name)) for s in (states[0], states[-1]))
            for old, new in zip(*pairs, strict=True):
                if old.dtype != bool:  # a flag may record the divergence
                    message = f"{name} of client {bad}"
                    np.testing.assert_array_equal(new[bad], old[bad], err_msg=message)


@check(_of(_everyone, capacity=3))
def reproducibility(algorithm: Algorithm) -> None:
    """Check that equal seeds give equal bits for any chunk of rounds, and other seeds differ."""
    program = toy_program(algorithm, toy_for(algorithm))
    states, _ = run_rounds(algorithm, toy_for(algorithm))
    again, _ = run_rounds(algorithm, toy_for(algorithm), capacity=3)
    assert_close(again[-1], states[-1], "another capacity", 0)
    last, _, _ = program.advance(program.start(), 0, ROUNDS)
    assert_close(first_run(last), states[-1], "all rounds in one chunk", 0)
    first, second = (jax.tree.map(lambda leaf, r=r: np.array(leaf)[r], last) for r in (0, 1))
    same = [np.array_equal(a, b) for a, b in
            zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)]  # fmt: skip
    assert not all(same), "two seeds gave the same state"


@check()
def sums_of_uploads(algorithm: Algorithm) -> None:
    """Check that a server that declares to need sums of uploads needs no more."""
    if algorithm.server_needs == "sums":
        exchange_uploads(algorithm)


@check(_of(_vectorized))
def executions(algorithm: Algorithm) -> None:
    """Check that clients and seeds one by one, as vmap lanes, or on two devices agree."""
    states, records = run_rounds(algorithm, _partial(algorithm))
    ways = {"vmap": _vectorized}
    if len(jax.local_devices()) > 1:
        ways["two devices"] = partial(_partial, devices=2)
    for way, make in ways.items():
        others, measured = run_rounds(algorithm, make(algorithm))
        assert_close(others[-1], states[-1], f"{way} against map")
        for name, score in records[-1]["scores"].items():
            assert_close(measured[-1]["scores"][name], score, f"{name}, {way} against map")


@check(uploads_program)
def uploads_withheld(algorithm: Algorithm) -> None:
    """Check that only uploads and what `also_sent` declares tell anybody of a client's samples."""
    if algorithm.also_sent:  # such algorithms refuse client-level privacy
        return
    for privacy in (SUMS, CLIENTS, {}):
        if withhold_uploads(algorithm, **privacy) is None:
            return


@check(gradients_program)
def gradients_withheld(algorithm: Algorithm) -> None:
    """Check that samples act through gradients alone, if sample-level privacy is accepted."""
    withhold_gradients(algorithm)


@check(_swept)
def settings_in_one_program(algorithm: Algorithm) -> None:
    """Check that two learning rates as lanes of one program equal the two single runs."""
    program = _swept(algorithm)
    swept = program.advance(program.start(), 0, 2).buffers["scores"]
    for setting, rate in enumerate((0.3, 0.1)):
        _, records = run_rounds(algorithm, _partial(algorithm, learning_rate=rate), 2)
        for t, record in enumerate(records):
            for name, scores in record["scores"].items():
                assert_close(swept[name][setting, t], scores, f"{name} of rate {rate}")


@check(_simulation)
def no_recompilation(algorithm: Algorithm) -> None:
    """Check that new seeds, rounds, rates and traced hyperparameters compile nothing again."""
    _simulation(algorithm).run(2)
    values = {f.name: getattr(algorithm, f.name) for f in fields(algorithm) if not is_static(f)}
    other = replace(algorithm, **{k: v * 1 for k, v in values.items()})
    with count_compilations() as compiled:
        federation = _partial(algorithm, learning_rate=0.2)
        Simulation(other, federation, seeds=(5, 7)).run(3, chunk_seconds=0)
    assert not compiled, f"compiled again: {compiled}"
