"""The ready local step composed in a carry of an algorithm's own: nothing of local training is
lost."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.optimizers import SGD
from fedjax_pfl.federation.regularizers import weight_distribution
from fedjax_pfl.testing.toys import SEEDS, assert_close, states_of, toy_federation
from fedjax_pfl.training.local_step import LocalStep, LossAndGradient
from fedjax_pfl.utils.structs import static, struct
from tests.algorithms.harness import Case, assert_models
from tests.algorithms.noisy import Noisy
from tests.references.network import add, loss_and_gradient, scale, subtract

RATE, MOMENTUM, DECAY, WDR, SIZE = 0.3, 0.9, 0.05, 2.0, 4


pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.mark.costly
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_and_weight_decay_against_plain_loops(nesterov):
    """v <- m v + g + d w, w <- w - eta v, or along g + d w + m v; v is 0 in each round's start."""
    case = Case(optimizer=SGD(MOMENTUM, nesterov, DECAY), participation=0.6)
    states = case.states_of(pfl.make_algorithm("local"))
    models, batches = [case.initial()] * 5, case.batches()
    for t in range(case.rounds):
        for i in range(5):
            trace = scale(0.0, models[i])
            for b in batches[t][i]:
                _, g = loss_and_gradient(models[i], case.x[b], case.y[b])
                g = add(g, scale(DECAY, models[i]))
                trace = add(scale(MOMENTUM, trace), g)
                along = add(g, scale(MOMENTUM, trace)) if nesterov else trace
                models[i] = subtract(models[i], scale(case.rates[t], along))
        assert_models(states[t + 1].models, models, f"round {t + 1}")


def test_two_updates_on_a_minibatch_leave_out_frozen_leaves_and_correct_the_gradient():
    federation = toy_federation(momentum=MOMENTUM)
    model = jax.device_get(jax.jit(federation.initial_model)(jax.random.key(1)))
    frozen = jax.tree.map(lambda head: not head, federation.plan.head_mask(model))["params"]
    data = federation.data
    at = jnp.arange(SIZE)
    batch = data.fetch(data.train, 0, at, at < 3, federation.task.dtype)

    def halved(gradient, params, broadcast, client):
        return jax.tree.map(lambda g: broadcast * g, gradient)

    @jax.jit
    def stepped(model):
        step = LocalStep(
            federation, RATE, correct=halved, trainable=frozen, mean_gradient=True,
            updates_per_batch=2,
        )  # fmt: skip
        return step(step.begin(model), batch, jax.random.key(0), 0.5, None)

    state = stepped(model)
    gradient = jax.jit(jax.grad(lambda m: federation.task.loss(m, batch)[0]))
    first, body = jax.device_get(gradient(model))["params"], {"fc_0": model["params"]["fc_0"]}
    once = subtract(body, scale(0.5 * RATE, {"fc_0": first["fc_0"]}))
    second = jax.device_get(gradient({"params": {**model["params"], **once}}))["params"]
    trace = {"fc_0": add(scale(MOMENTUM, first), second)["fc_0"]}
    wanted = {**model["params"], **subtract(once, scale(0.5 * RATE, trace))}
    assert_close(state.model["params"], wanted, "parameters")
    assert_close(state.gradient, scale(0.5, add(first, second)), "mean of the raw gradients")
    loss = jax.jit(lambda model: federation.task.loss(model, batch)[0])
    both = loss(model) + loss({"params": {**model["params"], **once}})
    assert_close(state.loss, both / 2, "mean of the losses")


def test_losses_of_half_precision_models_are_summed_in_float32():
    federation = toy_federation(dtype="bfloat16")
    step, model = LocalStep(federation, RATE), federation.initial_model(jax.random.key(1))
    result = LossAndGradient(jnp.ones((), "bfloat16"), scale(0, model["params"]), {})
    run = jax.jit(lambda s: jax.lax.fori_loop(0, 300, lambda _, s: step.update(s, result), s))
    assert run(step.begin(model)).loss == 300


@pytest.mark.costly
def test_a_forward_pass_of_its_own_takes_the_place_of_the_tasks():
    """Extra losses are added to it, and its statistics and its loss are the ones kept."""
    federation = toy_federation(model=Noisy(), extra_loss=pfl.training.WeightDistribution(WDR))
    data, task = federation.data, federation.task
    model = federation.initial_model(jax.random.key(1))
    batch = data.fetch(data.train, 0, jnp.arange(SIZE), jnp.ones(SIZE, bool), "float64")
    counts = data.class_counts[0]
    client = pfl.training.Client(*(jnp.int32(0),) * 3, counts, *(jnp.int32(0),) * 2, None)

    def doubled(model, batch, rng, broadcast, client):
        found = task.forward(model, batch, rng, train=False)
        return found._replace(loss=broadcast * found.loss)

    def total(params):
        loss = task.loss({**model, "params": params}, batch, train=False)[0]
        return 3 * loss + weight_distribution(params, federation.plan, counts, WDR)

    @jax.jit
    def both():
        step = LocalStep(federation, RATE, forward=doubled)
        rng = jax.random.key(0)
        return step.loss_and_gradient(model, batch, rng, 3.0, client), jax.grad(total)(
            model["params"]
        )

    found, wanted = both()
    assert_close(found.gradient, wanted, "gradient")
    assert_close(found.loss, 3 * task.loss(model, batch, train=False)[0], "loss")
    statistics = {name: tree for name, tree in model.items() if name != "params"}
    assert_close(found.statistics, statistics, "statistics", 0)


def test_every_update_on_a_minibatch_has_dropout_of_its_own():
    federation = toy_federation(model=Noisy())
    data, model = federation.data, federation.initial_model(jax.random.key(1))
    batch = data.fetch(data.train, 0, jnp.arange(SIZE), jnp.ones(SIZE, bool), "float64")

    @partial(jax.jit, static_argnums=0)
    def loss(updates):
        step = LocalStep(federation, 0.0, updates_per_batch=updates)
        return step(step.begin(model), batch, jax.random.key(0), None, None).loss

    assert abs(loss(2) - loss(1)) > 1e-4  # a rate of 0: the model is the same at both


def of_every_sample(params, batch, broadcast, client):
    return batch.valid * 1.0


@struct
class Trains(pfl.core.ALGORITHMS["fedavg"]):
    """FedAvg with options of its local training."""

    name = "trains"
    options: tuple = static(default=())

    def local_update(self, ctx, state, received, **options):
        return super().local_update(ctx, state, received, **dict(self.options), **options)


def after_one_round(regularizer=None, optimizer=optax.sgd, **options):
    federation = toy_federation(
        [8, 8, 8], validation_size=0, batch_size=4, extra_loss=regularizer, optimizer=optimizer
    )
    states = states_of(Trains(options=tuple(options.items())), federation, 1)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(states[-1])])


def test_an_extra_loss_of_every_sample():
    with pytest.raises(pfl.InputError, match=r"extra loss of_every_sample must be a single number"):
        after_one_round(extra_loss=of_every_sample)


def test_an_unknown_option_of_local_training():
    with pytest.raises(
        pfl.InputError,
        match=r"Unknown option of local training 'extra_los'\. Did you mean 'extra_loss'",
    ):
        after_one_round(extra_los=of_every_sample)


class KeysSeen:
    """The keys that functions of local steps were called with."""

    def __init__(self):
        self.all = set()

    def add(self, function, key):
        words = jax.random.key_data(key)
        jax.debug.callback(lambda words: self.all.add((function, tuple(words.tolist()))), words)

    def assert_one_of_each_step(self, functions):
        jax.effects_barrier()
        steps = 3 * 2 * len(SEEDS)
        for function in functions:
            assert len([1 for name, _ in self.all if name == function]) == steps, function
        assert len({key for _, key in self.all}) == len(functions) * steps


@pytest.mark.costly
def test_functions_that_ask_for_a_key_get_one_of_each_step():
    seen = KeysSeen()

    def loss(params, batch, broadcast, client, key):
        seen.add("loss", key)
        return jnp.zeros(())

    def correct(gradient, params, broadcast, client, key):
        seen.add("correct", key)
        return gradient

    @struct
    class Regularizer(pfl.training.ExtraLoss):
        def __call__(self, params, batch, client, plan, key):
            seen.add("regularizer", key)
            return jnp.zeros(())

    plain = after_one_round()
    keyed = after_one_round(Regularizer(), extra_loss=loss, correct=correct)
    np.testing.assert_allclose(keyed, plain, atol=1e-12)
    seen.assert_one_of_each_step(("loss", "correct", "regularizer"))


@pytest.mark.costly
@pytest.mark.parametrize("typed", [True, False])
def test_optimizers_that_draw_noise_have_a_key_of_each_step(typed):
    """A state begins with the same key for every client and in every round."""
    seen = KeysSeen()

    def init(params):
        return jax.random.key(7) if typed else jax.random.PRNGKey(7)

    def update(updates, key, params=None):
        seen.add("optimizer", key if typed else jax.random.wrap_key_data(key))
        return updates, jax.random.split(key, 1)[0]

    def optimizer(rate):
        return optax.chain(optax.GradientTransformation(init, update), optax.sgd(rate))

    np.testing.assert_allclose(after_one_round(optimizer=optimizer), after_one_round(), atol=1e-12)
    seen.assert_one_of_each_step(["optimizer"])


def noisy(learning_rate):
    return optax.noisy_sgd(learning_rate, eta=1e4, key=0)


@pytest.mark.costly
def test_a_key_that_is_given_already_stays():
    def loss(params, batch, broadcast, client, key):
        assert key == "mine"
        return jnp.zeros(())

    after_one_round(extra_loss=partial(loss, key="mine"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correct": lambda g, p, b, c, key: g}, "takes a key, and there is none"),
        ({}, "The optimizer draws random numbers, and the step has no key"),
    ],
)
def test_what_draws_needs_a_key(options, message):
    federation = toy_federation(optimizer=optax.sgd if options else noisy)
    step = LocalStep(federation, jnp.float64(0.1), **options)
    state = step.begin({"params": {"w": jnp.zeros(2)}})
    with pytest.raises(TypeError, match=message):
        step.update(state, LossAndGradient(0.0, {"w": jnp.ones(2)}, {}))
