"""`keep_optimizer_state`: local optimizers that go on from one of a client's rounds to its next."""

import jax
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import SEEDS, assert_close, toy_federation
from tests.algorithms.harness import Case
from tests.training.remembering import MOMENTUM, Remembering


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.costly
def test_fedavg_that_keeps_momentum_is_the_algorithm_that_does():
    """That one is held against plain loops."""
    known = Case(momentum=MOMENTUM, participation=0.6).states_of(Remembering())
    kept = Case(momentum=MOMENTUM, participation=0.6, keep_optimizer_state=True)
    states = kept.states_of(pfl.make_algorithm("fedavg"))
    seen: set = set()
    for t, (mine, other) in enumerate(zip(states, known, strict=True)):
        seen |= set(kept.cohorts[t - 1] if t else ())
        phase = mine.optimizers["train"]
        assert np.flatnonzero(phase.begun).tolist() == sorted(seen)
        assert_close(mine.own.server, other.server, f"server after {t} rounds", 1e-12)
        assert_close(phase.states, other.optimizers, f"momentum after {t} rounds", 1e-12)


def test_optimizer_states_change_only_for_clients_that_train():
    options = {"optimizer": "adam", "participation": 0.8, "keep_optimizer_state": True}
    options["arrivals"] = {1: 2, 3: 2}  # in the first round a member of the cohort is absent
    case = Case(**options)
    lost = case.cohorts[1][0]
    case = Case(**options, diverging=int(case.federation.data.ids[lost]))
    states = case.states_of(pfl.make_algorithm("fedavg"))
    for t, cohort in enumerate(case.cohorts):
        before, after = (states[k].optimizers["train"] for k in (t, t + 1))
        for i in range(5):
            same = [
                np.array_equal(a[i], b[i])
                for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)
            ]
            assert not all(same) if i in cohort and i != lost else all(same), (t, i)


def phases(algorithm, **options):
    """Shapes of the states of one client's optimizers, by phase."""
    federation = algorithm.prepare(toy_federation(keep_optimizer_state=True, **options))
    runs = make_runs(algorithm, federation, SEEDS[:1])
    states = Program(runs, federation, 2)._shapes
    return {
        name: [leaf.shape[2:] for leaf in jax.tree.leaves(phase.states)]
        for name, phase in states.optimizers.items()
    }


def test_every_phase_of_a_round_has_its_own_optimizer_state():
    w = [(5,), (4, 5)]
    result = phases(pfl.make_algorithm("fedrep"), momentum=MOMENTUM)
    assert result == {"head": [(3,), (5, 3)], "train": w}  # over the leaves that it trains
    both = [*w, (3,), (5, 3)]
    ditto = pfl.make_algorithm("ditto")
    assert phases(ditto, momentum=MOMENTUM) == {"train": both, "personal": both}
    shared = pfl.make_algorithm("ditto", {"batches": "shared"})
    assert phases(shared, momentum=MOMENTUM) == {"train": both, "train 2": both}


def test_optimizer_states_are_in_the_memory_estimate():
    def state(**options):
        one = toy_federation(optimizer=optax.adam, **options)
        return checked_program(pfl.make_algorithm("local"), one).held().state

    a_client = 1 + 4 + 2 * 8 * (4 * 5 + 5 + 5 * 3 + 3)  # whether it has begun, count, two moments
    assert state(keep_optimizer_state=True) - state() == 5 * a_client


def noisy(learning_rate):
    return optax.chain(optax.add_noise(0.01, 0.55, 0), optax.sgd(learning_rate))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "apfl",
            {"momentum": 0.5},
            "apfl takes local steps without ctx.train, .*: leave keep_optimizer_state",
        ),
        ("pfedhn", {"momentum": 0.5}, "pfedhn takes local steps without ctx.train"),
        ("fedavg", {}, "keep_optimizer_state has nothing to keep: SGD without momentum"),
        ("fedavg", {"optimizer": noisy}, "noisy draws from a random key in its state, which can't"),
    ],
)
def test_keep_optimizer_state_refusals(name, options, message):
    federation = toy_federation(keep_optimizer_state=True, **options)
    with pytest.raises(pfl.InputError, match=message):
        pfl.Simulation(pfl.make_algorithm(name), federation).check()
