"""Local optimizers that remember earlier rounds, and rates that follow the whole simulation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError
from fedjax_pfl.engine.fingerprint import fingerprint
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import SEEDS, assert_close, states_of, toy_federation
from fedjax_pfl.utils.structs import static, struct
from tests.algorithms.harness import Case
from tests.references.network import add, combine, loss_and_gradient, scale, subtract
from tests.training.remembering import MOMENTUM, Remembering, State

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.costly
def test_momentum_that_outlives_rounds_against_plain_loops():
    case = Case(momentum=MOMENTUM, participation=0.6)
    states = case.states_of(Remembering())
    server, batches = case.initial(), case.batches()
    traces = [scale(0.0, server)] * 5
    for t, cohort in enumerate(case.cohorts):
        uploads = []
        for i in cohort:
            model = server
            for b in batches[t][i]:
                _, g = loss_and_gradient(model, case.x[b], case.y[b])
                traces[i] = add(scale(MOMENTUM, traces[i]), g)
                model = subtract(model, scale(case.rates[t], traces[i]))
            uploads.append(model)
        server = combine(case.sizes[cohort] / case.sizes[cohort].sum(), uploads)
        assert_close(states[t + 1].server["params"], server, f"server of round {t + 1}")
        kept = jax.tree.map(lambda *leaves: np.stack(leaves), *traces)
        assert_close(states[t + 1].optimizers[0].trace, kept, f"momentum of round {t + 1}")


def test_diverged_clients_keep_their_optimizer_state(monkeypatch):
    monkeypatch.setattr(
        "fedjax_pfl.testing.checks.toy_for",
        lambda _, *sizes, **options: toy_federation(
            *sizes, **options, optimizer=optax.adam, client_execution="vmap", validation_size=0
        ),
    )
    CHECKS["divergence"](Remembering())


def test_states_of_others_are_refused():
    federation = toy_federation(momentum=MOMENTUM)

    class Whole(Remembering):
        def round(self, ctx, state):
            return ctx.train(pfl.Broadcast(state.server), optimizer_state=state.optimizers)

    federation = toy_federation(momentum=MOMENTUM, participation=0.6)
    with pytest.raises(TypeError, match=r"states of local optimizers must lead with .* 3 clients"):
        pfl.Simulation(struct(Whole)(), federation).estimate_memory()


@struct
class OfTheHead(Remembering):
    """Trains the head alone; what is remembered is over the leaves that `init` says."""

    over_the_head: bool = static(default=True)

    def trainable(self, ctx):
        return ctx.plan.head_mask(ctx.initial_model())["params"]

    def init(self, ctx):
        trainable = self.trainable(ctx) if self.over_the_head else None
        return State(ctx.initial_model(), ctx.initial_optimizer_state(trainable=trainable))

    def round(self, ctx, state):
        trained = ctx.train(
            pfl.Broadcast(state.server),
            trainable=self.trainable(ctx),
            optimizer_state=ctx.cohort.gather(state.optimizers),
        )
        kept = trained.cohort.scatter(state.optimizers, trained.optimizer_state)
        return replace(state, optimizers=kept), ctx.record(trained.cohort)


@pytest.mark.costly
def test_states_are_over_the_leaves_that_are_trained():
    federation = toy_federation(momentum=MOMENTUM)
    start, after = states_of(OfTheHead(), federation, 1)
    shapes = [leaf.shape for leaf in jax.tree.leaves(start.optimizers)]
    assert shapes == [(5, 3), (5, 5, 3)]
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(after.optimizers))
    with pytest.raises(TypeError, match=r"over the leaves .* with the same trainable as in ctx"):
        pfl.Simulation(OfTheHead(over_the_head=False), federation).estimate_memory()


def test_a_schedule_is_part_of_a_simulations_fingerprint_by_its_factors():
    def mark(schedule="constant", optimizer="sgd", adapt=None):
        federation = toy_federation(lr_schedule=schedule, optimizer=optimizer)
        runs = make_runs(pfl.make_algorithm("local"), federation, SEEDS)
        return fingerprint(Program(runs, federation, 4, adapt=adapt), (1,))

    def constant(value):
        return lambda t, total: value

    def momentum(value):
        return lambda rate: optax.sgd(rate, value)

    named = "data, partition or learning rate"
    # One name, other numbers: functions differ by their computation.
    assert mark(constant(0.5))[named] == mark(constant(0.5))[named] != mark(constant(0.6))[named]
    named = "model or training"
    same = mark("constant", momentum(0.5))[named]
    assert mark("constant", momentum(0.5))[named] == same != mark("constant", momentum(0.6))[named]
    for one, other in (
        ({"optimizer": momentum(0.5)}, {"optimizer": momentum(0.6)}),
        ({"when": "every"}, {"when": "last"}),
        ({"learning_rate": 0.1}, {"learning_rate": 0.1000001}),
    ):
        marks = [mark(adapt=pfl.Adaptation(**how))["evaluation"] for how in (one, one, other)]
        assert marks[0] == marks[1] != marks[2]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (0.5, r"lr_schedule must be a name or a function \(t, total\) -> factor, got 'float'"),
        (lambda t, total: 1.0 if t < 2 else 0.5, "-> factor of traced numbers: "),
        (lambda t: 1.0, "-> factor of traced numbers: "),
        (lambda t, total: jnp.ones(2), r"got 'a factor of shape \[2\]'"),
        (lambda t, total: 1 / (t - 1), "at least 0 in each round, got '-1.0 in round 1'"),
        (lambda t, total: 1 / t, "finite and at least 0 in each round, got 'inf in round 1'"),
    ],
)
def test_schedules_are_checked(schedule, message):
    with pytest.raises(InputError, match=message):
        federation = toy_federation(lr_schedule=schedule)
        pfl.Simulation(pfl.make_algorithm("local"), federation).check(4)


def test_a_schedule_is_hashable():
    class Listed(list):
        def __call__(self, t, total):
            return 1.0

    with pytest.raises(InputError, match="lr_schedule must be hashable"):
        toy_federation(lr_schedule=Listed())
