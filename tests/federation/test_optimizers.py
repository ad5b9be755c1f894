"""Optimizers and learning rate schedules by name, with options; clipping."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.runs import make_runs, remarks
from fedjax_pfl.federation.optimizers import OPTAX
from fedjax_pfl.federation.swept_numbers import with_numbers
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.training.local_step import LocalStep, LossAndGradient
from fedjax_pfl.utils.registries import options_of


def federation(**options):
    return toy_federation(dtype="float32", learning_rate=0.1, **options)


def made(**options):
    return federation(**options).training.make_optimizer()


def stepped(optimizer):
    """The first update of two numbers."""
    params, gradient = jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0])
    ready = optimizer(0.1)
    return ready.update(gradient, ready.init(params), params)[0]


@pytest.mark.parametrize("name", OPTAX)
def test_every_name_is_an_optimizer_of_a_traced_rate(name):
    def step(rate, gradient, params):
        one = pfl.training.OPTIMIZERS[name](rate)
        return one.update(gradient, one.init(params), params)[0]

    numbers = jax.ShapeDtypeStruct((3, 2), np.float32)
    moved = jax.eval_shape(step, jax.ShapeDtypeStruct((), np.float32), numbers, numbers)
    assert moved.shape == (3, 2)


def test_a_name_with_options_is_optaxs():
    options = {"b1": "0.5", "nesterov": True}
    named = made(optimizer="adam", optimizer_options=options)
    np.testing.assert_array_equal(stepped(named), stepped(lambda r: optax.adam(r, 0.5, nesterov=1)))
    assert str(named) == "adam (b1 0.5, nesterov 1)"
    again = made(optimizer="adam", optimizer_options={"nesterov": True, "b1": 0.5})
    assert again == named and hash(again) == hash(named) and again != made(optimizer="adam")


def test_sgd_by_name_is_the_usual_one():
    assert made() == made(optimizer="sgd") == pfl.training.SGD()
    assert made(momentum=0.5, optimizer_options={"nesterov": "true"}) == pfl.training.SGD(0.5, True)


def test_other_options_come_with_another_name():
    adam = federation(optimizer="adam", optimizer_options={"b1": 0.5}, lr_schedule="cosine")
    assert adam.training.optimizer_options == {"b1": 0.5}
    assert adam.training.numbers()["optimizer"] == "adam (b1 0.5)"
    for same in ({"batch_size": 2}, {"optimizer": "adam"}):
        assert adam.with_training(**same).training.optimizer_options == {"b1": 0.5}
    assert adam.with_training(optimizer="adamw").training.numbers()["optimizer"] == "adamw"
    assert adam.with_training(lr_schedule="constant").training.make_lr_schedule() is None
    assert adam.training.numbers()["lr_schedule"] == "cosine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"optimizer": "adm"},
            r"Unknown optimizer .adm.\. Did you mean .adam.\? One of your own is kn",
        ),
        ({"optimizer": None}, "optimizer must be a function .*, got 'NoneType'"),
        (
            {"optimizer": "adam", "optimizer_options": {"beta": 1}},
            "Unknown option of the optimizer 'adam' 'beta'. .*Valid: b1, b2, eps",
        ),
        (
            {"optimizer": "adam", "optimizer_options": {"b1": "much"}},
            "b1 of the optimizer 'adam' must be a number, got 'much'",
        ),
        (
            {"optimizer": "sign_sgd", "optimizer_options": {"b1": 1}},
            "The optimizer 'sign_sgd' has no options, got 'b1'",
        ),
        (
            {"optimizer_options": {"nesterov": True}},
            "nesterov must be absent without momentum, got",
        ),
        (
            {"optimizer": "rmsprop", "optimizer_options": {"decay": 0.5, "nesterov": True}},
            "nesterov of rmsprop must be absent without momentum, got True",
        ),
        ({"optimizer_options": {"momentum": 2}}, r"momentum must be in \[0, 1\), got 2"),
        (
            {"momentum": 0.5, "optimizer_options": {"momentum": 0.9}},
            "momentum is given twice: also in optimizer_options",
        ),
        (
            {"optimizer": optax.adam, "optimizer_options": {"b1": 0.5}},
            "optimizer_options must be absent where a function is given",
        ),
        ({"optimizer_options": [1]}, "optimizer_options must be a dict such as .*, got 'list'"),
        ({"optimizer": "adamw", "weight_decay": 0.1}, "with the optimizer adamw, which has its ow"),
        ({"lr_schedule": "cosin"}, "Unknown learning rate schedule 'cosin'. Did you mean 'cosine'"),
        (
            {"lr_schedule": "cosine", "lr_schedule_options": {"final": 2}},
            r"final of 'cosine' must be in \[0, 1\], got 2.0",
        ),
        (
            {"lr_schedule": "exponential", "lr_schedule_options": {"final": 0}},
            r"final of 'exponential' must be in \(0, 1\], got 0.0",
        ),
        (
            {"lr_schedule_options": {"final": 0.1}},
            "The learning rate schedule 'constant' has no options, got 'final'",
        ),
        ({"clip_norm": 0}, r"clip_norm must be a finite number in \(0, inf\), got 0"),
        ({"clip_norm": "1"}, "clip_norm must be a number, got '1'"),
        ({"keep_optimizer_state": 1}, "keep_optimizer_state must be True or False, got 1"),
    ],
)
def test_what_can_not_be(options, message):
    with pytest.raises(pfl.InputError, match=message):
        federation(**options)


@pytest.mark.parametrize(
    ("name", "options", "factors"),
    [
        ("exponential", {"final": 0.0625}, [1, 0.5, 0.25, 0.125]),
        ("cosine", {}, (1 + np.cos(np.pi * np.arange(4) / 4)) / 2),
        ("cosine", {"final": 0.5}, 0.75 + np.cos(np.pi * np.arange(4) / 4) / 4),
        ("warmup_cosine", {"warmup": 0.5}, [0.5, 1, 1, 0.5]),
        ("warmup_cosine", {"warmup": 1}, [0.25, 0.5, 0.75, 1]),
        ("warmup_cosine", {"warmup": 0}, (1 + np.cos(np.pi * np.arange(4) / 4)) / 2),
    ],
)
def test_schedules_over_four_rounds(name, options, factors):
    one = federation(lr_schedule=name, lr_schedule_options=options)
    np.testing.assert_allclose(one.training.rate_factors(4), factors, 1e-6)
    np.testing.assert_allclose(
        one.training.rate(jnp.int32(3), jnp.int32(4)), 0.1 * factors[3], 1e-6
    )


@pytest.mark.parametrize("sweep", [False, True])
def test_rates_of_half_precision_models_decay(sweep):
    options = {"learning_rate": 0.5, "learning_rate_decay": 0.999}
    one = toy_federation(dtype="bfloat16", **({} if sweep else options))
    settings = {name: (value,) for name, value in options.items()} if sweep else {}
    runs = make_runs(pfl.make_algorithm("local"), one, (0,), settings)
    numbers = {name: value[0] for name, value in runs.numbers.items()}
    rate = with_numbers(one, numbers).training.rate(jnp.int32(500), jnp.int32(1000))
    assert rate.dtype == jnp.bfloat16
    np.testing.assert_allclose(rate.astype(float), 0.5 * 0.999**500, 2**-8)


@pytest.mark.parametrize("name", ["fedavg", "fedavg_ft"])
def test_copies_trained_at_a_vanishing_rate_are_noted(name):
    algorithm, note = (
        pfl.make_algorithm(name),
        "copies train at the last round's rate, 0.0062 times",
    )

    def noted(schedule, rounds, adapt=None, **ended):
        common, _ = remarks(algorithm, federation(lr_schedule=schedule), {}, rounds, adapt, **ended)
        return any(one.startswith(note) for one in common)

    assert noted("cosine", 20) == (name == "fedavg_ft")
    assert noted("cosine", 20, pfl.Adaptation())
    assert not noted("cosine", 20, pfl.Adaptation(learning_rate=0.1)) or name == "fedavg_ft"
    assert not noted("cosine", 20, pfl.Adaptation(), ended=False)  # stopped at another rate
    assert not noted("cosine", 10, pfl.Adaptation()) and not noted("constant", 20)


@pytest.mark.costly
def test_gradients_are_clipped_before_the_optimizer_sees_them():
    one = federation(clip_norm=1.0, weight_decay=0.5)
    step = LocalStep(one, jnp.float32(0.1))
    params = {"a": jnp.array([2.0]), "b": jnp.array([[4.0]])}
    begun = step.begin({"params": params})

    def after(*gradient):
        found = LossAndGradient(jnp.float32(0), dict(zip("ab", gradient, strict=True)), {})
        return step.update(begun, found).model["params"]

    long = after(jnp.array([3.0]), jnp.array([[4.0]]))  # of norm 5
    np.testing.assert_allclose(long["a"], [2 - 0.1 * (3 / 5 + 0.5 * 2)], 1e-6)
    np.testing.assert_allclose(long["b"], [[4 - 0.1 * (4 / 5 + 0.5 * 4)]], 1e-6)
    short = after(jnp.array([0.3]), jnp.array([[0.4]]))
    np.testing.assert_allclose(short["a"], [2 - 0.1 * (0.3 + 0.5 * 2)], 1e-6)
    assert (
        one.training.clip_norm == 1 and one.with_training(clip_norm=None).training.clip_norm is None
    )


def test_functions_of_ones_own_have_names():
    @pfl.training.register_optimizer("halved_sgd")
    def halved(learning_rate, *, part: float = 0.5):
        return optax.sgd(part * learning_rate)

    @pfl.training.register_lr_schedule("steps")
    def steps(t, total, *, every: int = 2, factor: float = 0.1):
        return factor ** (t // every)

    try:
        assert options_of(halved) == {"part": 0.5}
        options = {"optimizer_options": {"part": 0.1}, "lr_schedule_options": {"every": 1}}
        one = federation(optimizer="halved_sgd", lr_schedule="steps", **options)
        np.testing.assert_allclose(stepped(one.training.make_optimizer()), [-0.005, -0.03], 1e-6)
        np.testing.assert_allclose(one.training.rate_factors(3), [1, 0.1, 0.01], 1e-6)
        with pytest.raises(pfl.InputError, match="optimizer 'halved_sgd' is registered already"):
            pfl.training.register_optimizer("halved_sgd")(steps)
    finally:
        del pfl.training.OPTIMIZERS["halved_sgd"], pfl.training.LR_SCHEDULES["steps"]


def on_plateau(rate):
    halve = optax.contrib.reduce_on_plateau(factor=0.5, patience=1)
    return optax.chain(optax.sgd(rate), halve)


def test_an_optimizer_receives_the_loss_of_the_minibatch():
    """Its factor halves where the loss does not fall."""
    step = LocalStep(federation(optimizer=on_plateau), 0.1)
    params = {"w": jnp.ones(2)}
    state = step.begin({"params": params})
    for loss in (1.0, 0.5, 2.0):
        result = LossAndGradient(jnp.float32(loss), params, {})
        state = step.update(state, result)
    assert state.optimizer[1].scale == 0.5 and state.optimizer[1].best_value == 0.5


def test_an_optimizer_with_other_arguments_receives_no_loss():
    def sam(rate):
        return optax.contrib.sam(optax.sgd(rate), optax.sgd(0.1))

    step = LocalStep(federation(optimizer=sam), 0.1)
    params = {"w": jnp.ones(2)}
    state = step.update(step.begin({"params": params}), LossAndGradient(jnp.float32(1), params, {}))
    np.testing.assert_allclose(state.model["params"]["w"], 1.1)


def changing(rate):
    """An optimizer whose state becomes floating point."""
    return optax.GradientTransformation(lambda p: jnp.int32(0), lambda g, s, p=None: (g, s + rate))


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (optax.lbfgs, "optimizer can't update this model from gradients, .* 'value_fn'"),
        (lambda rate: optax.lookahead(optax.sgd(rate), 2, 0.5), "can't update .*'fast'"),
        (changing, "must keep the shapes and types"),
    ],
)
def test_optimizers_that_need_more_than_gradients_and_the_loss(optimizer, message):
    with pytest.raises(pfl.InputError, match=message):
        federation(optimizer=optimizer)
    adapt = pfl.Adaptation(optimizer=optimizer)
    with pytest.raises(pfl.InputError, match=message.replace("optimizer", ".*")):
        pfl.Simulation(pfl.make_algorithm("fedavg"), federation(), adapt=adapt).check()


def test_the_loss_has_no_noise():
    private = federation(optimizer=on_plateau, dp="sample", dp_clip=1.0, dp_noise=1.0)
    with pytest.raises(pfl.InputError, match=r"under dp='sample' can't update .* 'value'"):
        pfl.Simulation(pfl.make_algorithm("fedavg"), private).check()
