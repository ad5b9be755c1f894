"""A stated epsilon covers all that the server, other clients and new clients see."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import core, trees
from fedjax_pfl.algorithms.fedavg import FedAvg
from fedjax_pfl.core import traced_checks
from fedjax_pfl.core.client_privacy import client_releases, state_for_new_clients
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.core.sample_privacy import releases
from fedjax_pfl.core.traced_checks import with_all_releases
from fedjax_pfl.engine.arguments import checked_program
from fedjax_pfl.engine.evaluation import named_models
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.federation.client import Client
from fedjax_pfl.testing import check_algorithm
from fedjax_pfl.testing.toys import toy_federation, toy_for
from fedjax_pfl.uploads.pipeline import ClientPrivacy, Uploads
from fedjax_pfl.uploads.stage import StageMemory, UploadInfo
from fedjax_pfl.utils.structs import by_field
from tests.core.upload_rounds import SIZES, context, flat

CLIENT = {"dp": "client", "dp_clip": 0.5, "dp_noise": 2.0}
SUMS = CLIENT | {"dp_placement": "distributed"}
DRAWN = SUMS | {"participation": 0.6}
SAMPLE = {"dp": "sample", "dp_clip": 1.0, "dp_noise": 1.0}

pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.parametrize(
    "name",
    ["fedper", *(pytest.param(n, marks=pytest.mark.costly) for n in ("cfl", "fedkd", "pfedhn"))],
)
def test_new_clients_begin_without_private_leaves_of_others(name):
    """Whatever clients' own fields hold, under client-level privacy."""
    algorithm = pfl.make_algorithm(name)
    ctx = context(algorithm, **CLIENT)
    open_run = replace(ctx, federation=replace(ctx.federation, uploads=None))

    def states(ctx):
        first = algorithm.init(ctx)
        private = by_field(lambda value, axes: jax.tree.map(lambda x: x + axes, value), first)
        return first, private, state_for_new_clients(algorithm, ctx, private)

    (first, _, known), (_, private, unchanged) = jax.jit(lambda: (states(ctx), states(open_run)))()
    for got, wanted in zip(jax.tree.leaves(known), jax.tree.leaves(first), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for got, wanted in zip(jax.tree.leaves(unchanged), jax.tree.leaves(private), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_new_clients_of_algorithms_without_a_servers_model_are_refused():
    algorithm = pfl.make_algorithm("feddwa")
    ctx = context(algorithm, **CLIENT)
    with pytest.raises(pfl.InputError, match="New clients of feddwa begin with other"):
        state_for_new_clients(algorithm, ctx, jax.eval_shape(lambda: algorithm.init(ctx)))


def test_a_failed_client_stays_in_the_graph_of_sfl():
    """Whether it failed changes no weight, where it counts with its last model."""
    algorithm = pfl.make_algorithm("sfl", {"graph": "neighbours", "neighbours": 3})

    def graphs(ctx):
        state, cohort = algorithm.init(ctx), ctx.cohort
        failed = cohort.mark_diverged(jnp.arange(5) != 1)
        return [
            algorithm._weights(ctx, one, state.server, state.models) for one in (cohort, failed)
        ]

    each = [context(algorithm, **options) for options in (CLIENT, {})]
    weights = jax.jit(lambda: [graph for ctx in each for graph in graphs(ctx)])()
    np.testing.assert_array_equal(weights[0], weights[1])
    assert np.any(weights[2] != weights[3])


@pytest.mark.parametrize(
    ("name", "hyperparameters", "options", "words"),
    [
        ("fedfomo", {}, CLIENT, "which models it downloads beside its uploads, which dp does not"),
        ("fedfomo", {}, {"secure_bits": 32}, "which models it downloads"),
        ("l2c", {}, CLIENT, "whom it listens to beside its uploads, which dp does not cover"),
        ("fedsam", {"global_momentum": True}, SUMS, "leave global_momentum out"),
        ("feddyn", {"score_last": True}, CLIENT, "leave score_last out"),
        ("feddyn", {"scaling": "size"}, SUMS, "take scaling='equal'"),
        ("fedphp", {}, SAMPLE, "does not cover the discrepancy of a minibatch's features"),
        ("waffle", {"everyone": True}, CLIENT, "same noise for each Alice"),
        ("fedcp", {}, SAMPLE, "does not cover the discrepancy of a minibatch's features"),
    ],
)
def test_what_noise_does_not_cover_is_refused(name, hyperparameters, options, words):
    made = pfl.make_algorithm(name, hyperparameters)
    federation = toy_for(made, **options)
    with pytest.raises(pfl.InputError, match=words):
        checked_program(made, federation, 1)


def test_steps_and_distillation_that_noise_covers():
    made = pfl.make_algorithm("fedphp", {"regularizer": "distillation"})
    assert not made.unprotected
    open_sums = toy_federation(SIZES, **CLIENT)
    checked_program(pfl.make_algorithm("fedsam", {"global_momentum": True}), open_sums, 1)


def test_an_empty_round_looks_like_others():
    """Whoever's weights are zero: the sum has noise, and the server takes its step."""
    algorithm = pfl.make_algorithm("pfedme")
    ctx = context(algorithm, **SUMS)
    none = jnp.zeros(5)

    def moves():
        model = ctx.initial_model()
        held, nobody = pfl.core.Broadcast(model), ctx.cohort.masked(none > 0)
        sent = ctx.upload(ctx.replicate(model), held, cohort=nobody)
        return jax.tree.map(jnp.subtract, ctx.aggregate(none, sent, onto=model), model)

    moved = flat(jax.jit(moves)())
    np.testing.assert_allclose(np.std(moved), 2.0 * 0.5 / 5, rtol=0.35)
    assert ctx.arrived(none) and not context(algorithm).arrived(none)


def test_noise_depends_on_its_parameters():
    """Two releases with the same normals would cancel the noise."""
    here, zero = jnp.ones(2, bool), jnp.zeros((2, 50))
    info = UploadInfo(jnp.arange(2), here, here, "model", jax.random.key(0))

    @jax.jit
    def drawn(clip, noise):
        stage = Uploads(privacy=ClientPrivacy(clip, noise))
        return stage([zero], [zero], info, StageMemory())[0][0][0] / (clip * noise)

    normals = [drawn(1.0, 1.0), drawn(1.0, 2.0), drawn(2.0, 1.0)]
    assert np.abs(np.corrcoef(normals) - np.eye(3)).max() < 0.6
    np.testing.assert_array_equal(drawn(1.0, 1.0), normals[0])


@pytest.mark.costly
def test_noise_of_uploads_depends_on_the_learning_rate_and_the_rounds():
    moved = []
    for algorithm, rate, rounds in (
        ("fedavg", 0.3, 1), ("fedavg", 0.1, 1), ("fedphp", 0.3, 2), ("fedphp", 0.3, 3),
    ):  # fmt: skip
        ctx = context(pfl.make_algorithm(algorithm), learning_rate=rate, **CLIENT)
        ctx = replace(ctx, _total_rounds=jnp.int32(rounds),
                      rounds_in_noise=algorithm == "fedphp")  # fmt: skip
        held = np.zeros((5, 50))
        moved.append(ctx.upload(held, held)[0])
    apart = np.abs(np.corrcoef(moved) - np.eye(4))
    assert apart.max() < 0.7


def test_samples_of_several_clients_are_refused():
    """Each client would release such a sample anew."""
    data = pfl.load_dataset("digits")
    lists = [[0, 1], [1, 2]], [[9], [10]]
    partition = pfl.Partition.from_lists(*lists, allow_overlap=True)
    with pytest.raises(pfl.InputError, match="1 training samples are held by several"):
        pfl.federate(data, partition, model="softmax", **SAMPLE)
    pfl.federate(data, partition, model="softmax", **CLIENT)


def test_noise_on_every_upload_is_accounted_without_sampling():
    """Secure aggregation adds no noise to a sum of few."""
    options = CLIENT | {"participation": 0.6, "sampling": "poisson", "secure_bits": 32}
    plan = plan_of(pfl.make_algorithm("fedavg"), toy_federation(SIZES, **options))
    assert plan["local"] and plan["rate"] == 1.0


def plan_of(algorithm, federation):
    facts = round_facts(one_run(algorithm), federation)
    if federation.sample_privacy is None:
        return client_releases(algorithm, federation, facts)
    return releases(algorithm, federation, facts)


class SendsTwice(FedAvg):
    """Sends its models a second time."""

    what = "again"

    def local_update(self, ctx, state, received, **options):
        trained = super().local_update(ctx, state, received, **options)
        ctx.upload(trained.models, core.Broadcast(state.server), self.what)
        return trained


class SendsTwiceAlike(SendsTwice):
    """The second time with the noise of the first."""

    what = "model"


class StepsTwice(FedAvg):
    """Computes two gradients on each minibatch."""

    def local_update(self, ctx, state, received, **options):
        return super().local_update(ctx, state, received, updates_per_batch=2)


class StepsInALoop(FedAvg):
    """The same in a loop of the step."""

    def local_update(self, ctx, state, received, **options):
        step = ctx.sgd_step()

        def twice(model, *args):
            return jax.lax.fori_loop(0, 2, lambda _, m: step(m, *args), model)

        begin = step.begin_all(trees.replicate(received.model, ctx.cohort.size))
        return ctx.run_clients(twice, begin)


class SendsInALoop(SendsTwice):
    """The second time twice, in a loop."""

    def local_update(self, ctx, state, received, **options):
        trained = FedAvg.local_update(self, ctx, state, received, **options)

        def again(sent, _):
            return ctx.upload(sent, core.Broadcast(state.server), self.what), None

        jax.lax.scan(again, trained.models, length=2)
        return trained


class SendsInOthersTurn(SendsTwice):
    """In each member's turn all members send."""

    def local_update(self, ctx, state, received, **options):
        trained = FedAvg.local_update(self, ctx, state, received, **options)

        def again(sent, member, own):
            return ctx.upload(sent, core.Broadcast(state.server), self.what), own

        ctx.in_turn(again, trained.models, ctx.cohort.ids)
        return trained


class TrainsInALoop(FedAvg):
    """Trains in a loop."""

    def local_update(self, ctx, state, received, **options):
        def train(_):
            used = FedAvg.local_update(self, ctx, state, received, **options)
            return used.models, used.loss

        models, loss = jax.tree.map(lambda leaf: leaf[0], jax.lax.map(train, jnp.arange(2)))
        return core.Trained(models, ctx.cohort, loss)


class AddsTwice(FedAvg):
    """Adds one upload up for each of two groups."""

    def local_update(self, ctx, state, received, **options):
        trained = super().local_update(ctx, state, received, **options)
        held = core.Broadcast(state.server)
        sent = ctx.upload(trained.models, held, "groups", trained.cohort)
        for group in (0, 1):
            ctx.aggregate(trained.cohort.mask * (ctx.cohort.ids % 2 == group), sent, state.server)
        ctx.aggregate(trained.cohort.mask * 1.0, sent, state.server)
        return trained


class Averages(FedAvg):
    """Divides by the number of members."""

    def server_update(self, ctx, state, mean, weights, used):
        ctx.average(weights, used.models, onto=used.models)
        return super().server_update(ctx, state, mean, weights, used)


class RepeatsInALoop(FedAvg):
    """Counted repetitions in a loop of the step's own."""

    def local_update(self, ctx, state, received, **options):
        step = ctx.sgd_step()

        def often(model, batch, rng, broadcast, client):
            def one(_, model):
                return step(model, batch, rng, broadcast, client)

            return jax.lax.fori_loop(0, 5, lambda _, m: client.repeat(2, one, m), model)

        begin = step.begin_all(trees.replicate(received.model, ctx.cohort.size))
        return ctx.run_clients(often, begin)


class SendsInABranchOfLanes(FedAvg):
    """A counted branch in lanes of its own."""

    def local_update(self, ctx, state, received, **options):
        trained = super().local_update(ctx, state, received, **options)
        send = partial(ctx.upload, reference=core.Broadcast(state.server), what="lanes")

        def lane(k):
            scaled = jax.tree.map(lambda leaf: leaf * k, trained.models)
            return ctx.when(ctx.t >= 0, lambda: send(scaled), lambda: scaled)

        jax.vmap(lane)(jnp.arange(3.0))
        return trained


class DoublesMinibatches(FedAvg):
    """A minibatch beside a copy of it: a sample is clipped twice."""

    def local_update(self, ctx, state, received, **options):
        step = ctx.sgd_step()

        def both(model, batch, rng, *rest):
            twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), batch)
            return step(model, twice, rng, *rest)

        begin = step.begin_all(trees.replicate(received.model, ctx.cohort.size))
        return ctx.run_clients(both, begin)


class TrainsAside(FedAvg):
    """By the function that the context calls, past the context."""

    def local_update(self, ctx, state, received, **options):
        step, schedule = ctx.sgd_step(), ctx.federation.schedule
        pfl.training.run_clients(
            ctx.federation, step, step.begin_all(received), rows=ctx.cohort.maybe_static_rows,
            key=ctx.key_for("aside"), schedule=schedule,
        )  # fmt: skip
        return super().local_update(ctx, state, received, **options)


LIARS = [
    (RepeatsInALoop, "gradients_withheld", SAMPLE, "in a loop or branch of a local step's own"),
    (SendsInABranchOfLanes, "uploads_withheld", CLIENT, "'lanes' in a loop, branch or jit"),
    (DoublesMinibatches, "gradients_withheld", SAMPLE, "on other samples than a minibatch"),
    (TrainsAside, "gradients_withheld", SAMPLE, "by training.run_clients is not counted"),
    (SendsTwiceAlike, "uploads_withheld", CLIENT, "uploads twice under one name"),
    (
        StepsInALoop,
        "gradients_withheld",
        SAMPLE,
        "in a loop or branch of a local step's own is not",
    ),
    (SendsInALoop, "uploads_withheld", CLIENT, "'again' in a loop, branch or jit"),
    (SendsInOthersTurn, "uploads_withheld", CLIENT, "'again' within ctx.in_turn must be of"),
    (TrainsInALoop, "gradients_withheld", SAMPLE, "Local training in a loop, branch or jit"),
    (AddsTwice, "uploads_withheld", DRAWN, "adds uploads up 4 times and uploads 2 times"),
    (Averages, "uploads_withheld", DRAWN, "ctx.average depends on how many clients were drawn"),
]


@pytest.mark.parametrize(("cls", "check", "private", "message"), LIARS)
def test_releases_that_can_not_be_counted_are_refused(monkeypatch, cls, check, private, message):
    """By simulations under privacy while they are traced, and by the shared check."""
    monkeypatch.setitem(core.ALGORITHMS, "lying", None)  # forgotten at the end
    del core.ALGORITHMS["lying"]
    lying = core.algorithm("lying")(type("Lying", (cls,), {}))()
    with pytest.raises(pfl.InputError, match=message):
        pfl.simulate(lying, toy_federation(SIZES, **private), 1)
    with pytest.raises(AssertionError, match=message):
        check_algorithm(lying, only=check, show=None)


def test_second_uploads_and_gradients_are_counted(registered):
    sent = plan_of(registered(SendsTwice), toy_federation(SIZES, **CLIENT))
    assert sent["per_round"] == 2
    for cls, per_batch in ((FedAvg, 1), (StepsTwice, 2), (TrainsAlike, 2), (AdaptsTwice, 2)):
        plan = plan_of(registered(cls), toy_federation(SIZES, **SAMPLE))
        assert plan["per_batch"] == per_batch
    larger = plan_of(registered(TrainsOnMore), toy_federation(SIZES, batch_size=2, **SAMPLE))
    np.testing.assert_allclose(larger["rates"], np.minimum(5 / np.array(SIZES), 1))


def test_strict_privacy_looks_at_every_loop(registered):
    class Shuffles(FedAvg):
        """On shuffled minibatches beside the federation's."""

        def local_update(self, ctx, state, received, **options):
            step = ctx.sgd_step()
            schedule = pfl.training.Schedule(steps=1, batch_size=2)
            ctx.run_clients(step, step.begin_all(received), purpose="more", schedule=schedule)
            return FedAvg.local_update(self, ctx, state, received, **options)

    options = SAMPLE | {"batch_order": "poisson", "dp_strict": True}
    federation = toy_federation(SIZES, **options)
    pfl.Simulation(registered(FedAvg), federation).check(1)
    with pytest.raises(pfl.InputError, match="own has a schedule of its own without poisson"):
        pfl.Simulation(registered(Shuffles), federation).check(1)


def test_clients_that_are_not_drawn_send_nothing():
    observer, ids = RoundObserver(), jnp.arange(5)
    everyone = pfl.Context(toy_federation(SIZES), jax.random.key(0), 0, 1, None).cohort_of()
    observer.cohort = replace(everyone, mask=ids % 2 == 0)
    assert observer.drawn(everyone).mask.tolist() == [True, False, True, False, True]
    assert observer.drawn(replace(everyone, mask=ids < 2)).mask.tolist() == [True, *[False] * 4]


def test_steps_beyond_the_recorded_ones_are_counted():
    observer = RoundObserver()
    observer.steps = jnp.array([2, 4])
    record = core.Record({"local_steps": jnp.array([3, 2])}, {}, jnp.zeros(2), jnp.zeros(2), {})
    for noisy, steps in ((False, [3, 4]), (True, [2, 4])):  # the record counts other passes, too
        known = with_all_releases(record, observer, noisy).clients["local_steps"]
        assert known.tolist() == steps
    assert with_all_releases(record, RoundObserver()) is record


class StepsAside(FedAvg):
    """Trains a second time in a loop of its own, in odd rounds, and records nothing of it."""

    def local_update(self, ctx, state, received, **options):
        step = ctx.sgd_step()
        begin = step.begin_all(trees.replicate(received.model, ctx.cohort.size))
        odd = ctx.t % 2 == 1
        ctx.when(odd, lambda: ctx.run_clients(step, begin, purpose="aside").carry, lambda: begin)
        return super().local_update(ctx, state, received, **options)


@pytest.mark.costly
def test_gradients_with_noise_are_counted_wherever_they_are_computed(monkeypatch):
    monkeypatch.setitem(core.ALGORITHMS, "aside", None)
    del core.ALGORITHMS["aside"]
    aside = core.algorithm("aside")(StepsAside)()
    result = pfl.simulate(aside, toy_federation(SIZES, **SAMPLE), 4)
    steps = np.asarray(result.clients["local_steps"])[0, 0]
    np.testing.assert_array_equal(steps[1::2], 2 * steps[::2])


class SendsAgain(FedAvg):
    """Sends its models once more within a function of `more`."""

    def local_update(self, ctx, state, received, **options):
        trained = super().local_update(ctx, state, received, **options)
        send = partial(ctx.upload, reference=core.Broadcast(state.server), what="x")
        self.more(ctx, trained.models, send)
        return trained


def whole_in_turn(ctx, models, send):
    """A branch within each member's turn, in which all members send."""

    def turn(sent, member, own):
        return ctx.when(ctx.t >= 0, lambda: send(sent), lambda: sent), own

    ctx.in_turn(turn, models, ctx.cohort.ids)


def turns_in_turn(ctx, models, send):
    """In each member's turn, each member's turn."""

    def inner(carry, member, own):
        return carry, send(own, cohort=member)

    ctx.in_turn(lambda c, m, own: (ctx.in_turn(inner, c, models)[0], own), 0.0, ctx.cohort.ids)


def own_in_each_turn(ctx, models, send):
    """In each member's turn, its own upload in each member's turn."""

    def turn(carry, member, own):
        return ctx.in_turn(lambda c, m, _: (send(own, cohort=member), m.ids), own, models)[0], own

    own = jax.tree.map(lambda leaf: leaf[:1], models)
    ctx.in_turn(turn, own, models)


def twice_in_a_branch(ctx, models, send):
    ctx.when(ctx.t >= 0, lambda: (send(models), send(models)), lambda: (models, models))


def twice_in_turn(ctx, models, send):
    ctx.in_turn(lambda c, m, own: (c, (send(own, cohort=m), send(own, cohort=m))), 0.0, models)


def of_rows(ctx, models, send):
    """One client twice."""
    send(jax.tree.map(lambda leaf: leaf[:2], models), cohort=ctx.cohort_of(jnp.array([0, 0])))


def traced(algorithm, **private):
    """Return a function that makes the first state, its models and the first round's record."""
    ctx = context(algorithm, batch_size=2, **private)

    def first_round():
        state = traced_checks.checked_init(algorithm, ctx)
        named_models(algorithm, ctx, state, np.arange(5))
        return traced_checks.checked_round(algorithm, ctx, state)[1]

    return first_round


@pytest.fixture
def registered(monkeypatch):
    def make(cls):
        monkeypatch.setitem(core.ALGORITHMS, "own", None)  # forgotten at the end
        del core.ALGORITHMS["own"]
        return core.algorithm("own")(type("Own", (cls,), {}))()

    return make


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (whole_in_turn, "'x' within ctx.in_turn must be of the member"),
        (turns_in_turn, "'x' within ctx.in_turn must be of the member"),
        (own_in_each_turn, "'x' within ctx.in_turn must be of the member"),
        (twice_in_a_branch, r"uploads twice under one name \('x', 'x', 'model'\)"),
        (twice_in_turn, r"uploads twice under one name \('x', 'x', 'model'\)"),
        (of_rows, "'x' is of clients by their rows, of which two may be one"),
    ],
)
def test_uploads_that_are_more_than_they_look_are_refused(registered, more, message):
    algorithm = registered(type("Sends", (SendsAgain,), {"more": staticmethod(more)}))
    with pytest.raises(pfl.InputError, match=message):
        jax.eval_shape(traced(algorithm, **CLIENT))


def test_an_upload_in_one_branch_of_a_turn_is_one(registered):
    def own(ctx, models, send):
        def turn(carry, member, own):
            send_own = partial(send, own, cohort=member)
            return carry, ctx.when(ctx.t > 0, send_own, lambda: own)

        ctx.in_turn(turn, 0.0, models)

    algorithm = registered(type("Sends", (SendsAgain,), {"more": staticmethod(own)}))
    jax.eval_shape(traced(algorithm, **CLIENT))


def test_whoever_sends_takes_part(registered):
    """Also absent clients, whatever the record says."""

    def everyone(ctx, models, send):
        send(ctx.replicate(ctx.initial_model()), cohort=ctx.cohort_of())

    algorithm = registered(type("Sends", (SendsAgain,), {"more": staticmethod(everyone)}))
    record = jax.jit(traced(algorithm, **CLIENT, participation=0.6))()
    assert np.all(record.clients["participated"])


class SendsAtFirst(FedAvg):
    def init(self, ctx):
        model = ctx.initial_model()
        ctx.upload(ctx.replicate(model), core.Broadcast(model), "first")
        return super().init(ctx)


class TrainsAtFirst(FedAvg):
    def init(self, ctx):
        ctx.train(core.Broadcast(ctx.initial_model()))
        return super().init(ctx)


class SendsForModels(FedAvg):
    def models(self, ctx, state, rows):
        ctx.upload(ctx.replicate(state.server), core.Broadcast(state.server), "last")
        return super().models(ctx, state, rows)


class TrainsForModels(FedAvg):
    def models(self, ctx, state, rows):
        cohort = ctx.cohort_of(rows)
        return {"personalized": ctx.train(core.Broadcast(state.server), cohort).models}


class TrainsAlike(FedAvg):
    """On the same minibatches twice, once in a loop of its own."""

    def local_update(self, ctx, state, received, **options):
        step = ctx.sgd_step()
        ctx.run_clients(step, step.begin_all(received))
        return super().local_update(ctx, state, received, **options)


class TrainsOnMore(FedAvg):
    """On larger minibatches, too."""

    def local_update(self, ctx, state, received, **options):
        step, schedule = ctx.sgd_step(), replace(ctx.federation.schedule, batch_size=5)
        ctx.run_clients(step, step.begin_all(received), purpose="more", schedule=schedule)
        return super().local_update(ctx, state, received, **options)


class TrainsInOrder(FedAvg):
    """On minibatches that everybody knows."""

    def local_update(self, ctx, state, received, **options):
        schedule = ctx.federation.schedule.one_pass()
        return super().local_update(ctx, state, received, schedule=schedule, **options)


class TrainsOnAPart(FedAvg):
    """On a window of the training samples, in which each is drawn more often."""

    def local_update(self, ctx, state, received, **options):
        step, train = ctx.sgd_step(), ctx.federation.data.train
        part = train.window(jnp.zeros_like(train.size), jnp.minimum(train.size, 2))
        ctx.run_clients(step, step.begin_all(received), purpose="part", split=part)
        return super().local_update(ctx, state, received, **options)


class AdaptsTwice(FedAvg):
    """On the same minibatches."""

    def local_update(self, ctx, state, received, **options):
        for _ in range(2):
            ctx.adapt(received, ctx.cohort.rows, pfl.Adaptation(steps=1))
        return super().local_update(ctx, state, received, **options)


class TrainsOneTwice(FedAvg):
    """With the same noise."""

    def local_update(self, ctx, state, received, **options):
        ctx.train(received, ctx.cohort_of(jnp.array([0, 0])), purpose="more")
        return super().local_update(ctx, state, received, **options)


class TrainsInOthersTurn(FedAvg):
    """In each member's turn all members, with the same noise."""

    def local_update(self, ctx, state, received, **options):
        ctx.in_turn(lambda c, m, own: (ctx.train(received).loss, own), jnp.zeros(5), ctx.cohort.ids)
        return super().local_update(ctx, state, received, purpose="more", **options)


class StepsByHand(FedAvg):
    """Computes a gradient outside of a local loop."""

    def local_update(self, ctx, state, received, **options):
        data, row = ctx.federation.data, jnp.int32(0)
        batch = data.batch(row, jnp.arange(2), jnp.ones(2, bool), "float64")
        one = Client(row, row, row + 7, data.class_counts[0], row + 1, row, None, row + 2)
        ctx.sgd_step().loss_and_gradient(received.model, batch, ctx.key_for("x"), None, one)
        return super().local_update(ctx, state, received, **options)


@pytest.mark.parametrize(
    ("cls", "private", "message"),
    [
        (SendsAtFirst, CLIENT, "'first' in own.init is not counted"),
        (SendsForModels, CLIENT, "'last' in own.models is not counted"),
        (TrainsAtFirst, SAMPLE, "Local training in own.init is not counted"),
        (TrainsForModels, SAMPLE, "Local training in own.models is not counted"),
        (TrainsInOrder, SAMPLE, "that are not drawn at random"),
        (TrainsOnAPart, SAMPLE, "that are not drawn at random"),
        (TrainsOneTwice, SAMPLE, "Local training is of clients by their rows"),
        (TrainsInOthersTurn, SAMPLE, "Local training within ctx.in_turn must be of the member"),
        (StepsByHand, SAMPLE, "outside of ctx.train and ctx.run_clients is not counted"),
    ],
)
def test_releases_that_no_accountant_knows_are_refused(registered, cls, private, message):
    algorithm = registered(cls)
    with pytest.raises(pfl.InputError, match=message):
        jax.eval_shape(traced(algorithm, **private))
    jax.eval_shape(traced(algorithm))  # fine without privacy


def test_gradients_in_a_loop_of_a_step_are_counted(registered):
    """Though the record counts steps."""

    class Thrice(FedAvg):
        def local_update(self, ctx, state, received, **options):
            step = ctx.sgd_step()

            def thrice(model, batch, rng, broadcast, client):
                def one(_, model):
                    return step(model, batch, rng, broadcast, client)

                return client.repeat(3, one, model)

            begin = step.begin_all(trees.replicate(received.model, ctx.cohort.size))
            runs = ctx.run_clients(thrice, begin)
            return core.Trained(runs.carry.model, ctx.cohort.counted(runs.steps), runs.carry.loss)

    algorithm = registered(Thrice)
    record = jax.jit(traced(algorithm, **SAMPLE))()
    np.testing.assert_array_equal(record.clients["local_steps"], 3 * -(-np.array(SIZES) // 2))
    assert plan_of(algorithm, toy_federation(SIZES, **SAMPLE))["per_batch"] == 3


@pytest.mark.parametrize("what", ["learning_rate", "rounds"])
def test_noise_of_gradients_depends_on_the_learning_rate_and_the_rounds(what):
    """Where a longer run starts over, as FedPHP's."""
    moved = []
    for changed in (False, True):
        options = {"dp": "sample", "dp_clip": 1e-30, "dp_noise": 1e30, "learning_rate": 0.3}
        if changed:
            options |= {"learning_rate": 0.1} if what == "learning_rate" else {"rounds": 2}
        made = pfl.make_algorithm("fedphp", {"regularizer": "distillation"})
        ctx = context(made, **options)
        model = ctx.initial_model()
        after = jax.jit(lambda ctx=ctx, m=model: ctx.train(core.Broadcast(m)).models)()
        moved.append(flat(jax.tree.map(jnp.subtract, after, model)))
    assert abs(np.corrcoef(moved)[0, 1]) < 0.5
