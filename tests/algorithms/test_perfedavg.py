"""Per-FedAvg against its reference, and its steps on two or three minibatches."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, assert_models, assert_steps
from tests.algorithms.newcomers import personalized
from tests.algorithms.noisy import Noisy, batches_of_a_step
from tests.references import local_sgd, perfedavg

HESSIAN = {"variant": "hessian_free"}
DIFFERENCES = {**HESSIAN, "product": "differences"}


def algorithm(**settings):
    return pfl.make_algorithm("perfedavg", settings)


def batches_and_rates(one):
    case, local = one.case, one.case.federation.schedule
    steps = replace(
        local,
        epochs=one.algorithm.passes * local.epochs,
        batches_per_step=perfedavg.VARIANTS[one.algorithm.variant],
    )
    return {
        "batches": case.batches(schedule=steps, single=False),
        "inner_rate": [one.settings["inner_factor"] * rate for rate in case.rates],
        "adapt_batches": case.batches("adapt", replace(local, epochs=1, steps=1)),
    }


def gradients_of_a_step(one):
    return 2 if one.algorithm.variant == "first_order" else 4


def check(now):
    walks = [now.batches()] * gradients_of_a_step(now.compared)
    assert_steps(now.record, now.cohort, *walks)
    now.assert_mean()


test_reference, test_contract = comparison(
    "perfedavg",
    perfedavg.run,
    settings={"inner_factor": 0.5},
    variants={
        "first-order": {},
        "exact": {**HESSIAN, "passes": 1, "weighting": "uniform"},
        "differences": {**DIFFERENCES, "delta": 0.01, "passes": 3},
    },
    ours=("inner_factor", "passes"),
    given=batches_and_rates,
    states={"server": "global"},
    scores={"global": "global", "personalized": "personalized"},
    steps=(),
    check=check,
)


@pytest.mark.costly
def test_new_clients_of_perfedavg():
    case = Case(1, scored=False)
    start, rate = case.initial("server"), 0.5 * case.rates[0]
    made = personalized(algorithm(inner_factor=0.5), case)
    (batches,) = case.batches("adapt")
    wanted = [local_sgd.sgd(start, own, case.x, case.y, rate) for own in batches]
    assert_models(made, wanted, "new clients")


def by_hand(start, federation):
    """(model, mean loss) of one step with momentum that has no past, and decay 0.1."""
    batches, rng = batches_of_a_step(federation, replace(federation.schedule, batches_per_step=3))
    task, alpha = federation.task, 0.5 * 0.3

    @jax.jit
    def step(model):
        w = model["params"]

        def loss(params, m):
            noise = jax.random.fold_in(rng, m)
            return task.loss({**model, "params": params}, batches[m], noise)

        (first, _), g = jax.value_and_grad(loss, has_aux=True)(w, 0)
        inner = jax.tree.map(lambda p, g: p - alpha * g, w, g)
        d, after = jax.grad(loss, has_aux=True)(inner, 1)
        _, back = jax.vjp(lambda w: jax.grad(loss, has_aux=True)(w, 2)[0], w)
        d = jax.tree.map(lambda d, h: d - alpha * h, d, back(d)[0])
        params = jax.tree.map(lambda p, d: p - 0.3 * (d + 0.1 * p), w, d)
        return {**after, "params": params}, first

    return step(start)


@pytest.mark.costly
def test_noise_statistics_and_decay_of_perfedavg():
    """Each minibatch has noise of its own, the second pass makes the statistics; plain trials."""
    federation = toy_federation(
        (6,), (3,), model=Noisy(), batch_size=2, local_steps=1, momentum=0.5, weight_decay=0.1
    )
    ours = algorithm(inner_factor=0.5, **HESSIAN)
    (start, end), (record,) = run_rounds(ours, federation, 1, scored=())
    wanted, loss = by_hand(start.server, federation)
    assert_close(end.server, wanted, "server")
    np.testing.assert_allclose(record["clients"]["train_loss"], [loss], 1e-9)


@pytest.mark.costly
def test_steps_without_a_second_minibatch():
    """They move nothing, neither by the local optimizer's weight decay."""
    federation, ours = toy_federation((1,), (2,), weight_decay=0.1), algorithm()
    (start, end), (record,) = run_rounds(ours, federation, 1, scored=())
    assert_close(end.server, start.server, "server", 0)
    assert record["clients"]["train_loss"] > 0.1 and record["clients"]["local_steps"] == 4
    assert ours.has_step(toy_federation()).tolist() == [True, True, False, True, True]
    whole = ours.has_step(toy_federation(drop_last=True))  # of two minibatches of 4
    assert whole.tolist() == [False, False, False, True, False]


@pytest.mark.parametrize("settings", [HESSIAN, DIFFERENCES | {"delta": 0.01}])
def test_product_with_the_hessian(settings):
    hessian, w, d = np.array([[2.0, 1], [1, 3]]), jnp.array([1.0, 5]), jnp.array([-1.0, 2])
    found = algorithm(**settings).hessian_product(lambda w: hessian @ w, w, d)
    np.testing.assert_allclose(found, [0, 5], atol=1e-3)


def test_perfedavg_halves_a_batch_of_all_samples():
    ours, federation = algorithm(passes=1), toy_federation((6,), (3,), batch_size=100)
    assert ours.has_step(federation).tolist() == [True]
    (step,) = pfl.training.batch_indices(
        ours.schedule(federation), federation.data.train, jax.random.key(0), 0, 0
    )
    assert [len(half) for half in step] == [3, 3]


def test_perfedavg_without_a_step_of_any_client():
    with pytest.raises(pfl.InputError, match="local step"):
        pfl.Simulation(algorithm(), toy_federation((1,), (1,))).check()


@pytest.mark.parametrize(
    ("factor", "told"),
    [(1, "1 local step, optimizer SGD"),
     (0.5, "1 local step, 0.5 times the round's rate, optimizer SGD")],
)  # fmt: skip
def test_remarks(factor, told):
    ours = algorithm(inner_factor=factor)
    assert ours.remarks(toy_federation()) == [f"scored after {told} on a copy"]
    assert jnp.isclose(ours.adaptation().rate_factor, factor)
