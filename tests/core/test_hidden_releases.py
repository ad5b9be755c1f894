"""What an author may do beside what is declared: it is counted, noted or refused."""

from dataclasses import replace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import core
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import make_runs, one_run
from fedjax_pfl.testing.toys import toy_federation
from tests.core.upload_rounds import SIZES, context

SUMS = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0, "dp_placement": "distributed"}
SAMPLE = {"dp": "sample", "dp_clip": 1.0, "dp_noise": 1.0}

pytestmark = pytest.mark.usefixtures("double_precision")


def test_the_number_of_rounds_is_noted_whoever_reads_it():
    total = object()
    ctx = replace(context(pfl.make_algorithm("fedavg")), asked=set(), _total_rounds=total)
    public = [name for name in dir(ctx) if name[0] != "_"]
    assert [name for name in public if getattr(ctx, name) is total] == ["num_rounds"]
    assert ctx.asked == {"num_rounds"}


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1.0, 0.5),
        (1, True),
        (np.zeros(2000), 1.0 * (np.arange(2000) == 1000)),  # neither can be seen in their texts
        ((np.zeros(2000),), (1.0 * (np.arange(2000) == 1000),)),
        ({"a": np.float32(1)}, {"a": np.float32(1 + 1e-6)}),
        ({1, 2}, {1}),  # nor hashed
    ],
)
def test_a_class_variable_is_part_of_the_program(made, first, later):
    class Slows(FedAvg):
        factor: ClassVar = first

        def server_update(self, ctx, state, mean, weights, used):
            return replace(state, server=jax.tree.map(lambda x: x * self.factor, mean))

    algorithm, federation = made(Slows), toy_federation(SIZES)
    before, same = (jax.tree.structure(make_runs(algorithm, federation, (0,))) for _ in range(2))
    Slows.factor = later
    assert before == same != jax.tree.structure(make_runs(algorithm, federation, (0,)))


def test_epochs_of_clients_are_at_most_the_schedules():
    """For which an epsilon is divided."""
    ctx = context(pfl.make_algorithm("fedavg"))
    epochs, zero = jnp.array([0, 1, 2, 3, 1]), core.Broadcast(jnp.zeros(()))
    steps = ctx.run_clients(lambda carry, *_: carry, zero, epochs=epochs).steps
    assert steps.tolist() == [0, 1, 2, 3, 1]


@pytest.mark.parametrize(
    ("condition", "rounds"),
    [
        (lambda ctx: ctx.t % 3 == 0, 4),
        (lambda ctx: ctx.t + 1 == ctx.num_rounds, 1),
        (lambda ctx: ctx.t >= 0, 10),
    ],
)
def test_an_epsilon_is_divided_over_the_rounds_in_which_a_condition_holds(made, condition, rounds):
    class Sometimes(FedAvg):
        def local_update(self, ctx, state, received):
            trained = ctx.train(received)
            ctx.when(condition, lambda: ctx.train(received, purpose="x").loss, lambda: trained.loss)
            return trained

    algorithm, federation = made(Sometimes), toy_federation(SIZES, **SAMPLE)
    facts = round_facts(one_run(algorithm), federation)
    assert [one.times(10) for one in facts.trainings] == [10, rounds]


def test_a_condition_of_more_than_rounds_is_refused(made):
    class Sometimes(FedAvg):
        def local_update(self, ctx, state, received):
            def lucky(ctx):
                return jax.random.bernoulli(ctx.key_for("luck"))

            trained = ctx.train(received)
            ctx.when(lucky, lambda: ctx.train(received, purpose="x").loss, lambda: trained.loss)
            return trained

    federation = toy_federation(SIZES, dp="sample", dp_clip=1.0, dp_epsilon=3.0)
    with pytest.raises(pfl.InputError, match="must read nothing but ctx"):
        pfl.Simulation(made(Sometimes), federation).check(3)


def test_samples_on_the_host_are_not_read_before_the_first_round(made):
    class TrainsAtFirst(FedAvg):
        def init(self, ctx):
            first = ctx.train(core.Broadcast(ctx.initial_model()), ctx.cohort_of()).models
            return replace(super().init(ctx), server=jax.tree.map(lambda leaf: leaf[0], first))

    federation = toy_federation(SIZES, participation=0.4, client_state="host")
    with pytest.raises(pfl.InputError, match="reads clients' samples before its first round"):
        pfl.Simulation(made(TrainsAtFirst), federation).check()
