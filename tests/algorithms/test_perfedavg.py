"""Per-FedAvg against its reference, and in its limits."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_models, assert_steps, over
from tests.algorithms.newcomers import personalized
from tests.algorithms.noisy import Noisy, batches_of_a_step
from tests.references import local_sgd, perfedavg

HESSIAN = {"variant": "hessian_free"}
VARIANTS = {
    "defaults": {},
    "exact": {**HESSIAN, "inner_factor": 0.5, "passes": 1, "weighting": "uniform"},
    "differences": {**HESSIAN, "product": "differences", "delta": 0.01, "passes": 3},
}
QUICK = [("partial-map", "defaults"), ("full-vmap", "exact"), ("full-vmap", "differences")]


def algorithm(**settings):
    return pfl.make_algorithm("perfedavg", settings)


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    settings, case = VARIANTS[variant], Case(**PATTERNS[pattern])
    first_order = settings.get("variant") != "hessian_free"
    local = case.federation.schedule
    schedule = replace(
        local,
        epochs=settings.get("passes", 2) * local.epochs,
        batches_per_step=2 if first_order else 3,
    )
    batches = case.batches(schedule=schedule, single=False)
    factor = settings.get("inner_factor", 1.0)
    known = ("variant", "product", "delta", "weighting")
    wanted = perfedavg.run(
        case.initial(),
        case.clients(),
        3,
        **case.common(batches=batches),
        **{name: settings[name] for name in known if name in settings},
        inner_rate=[factor * rate for rate in case.rates],
        adapt_batches=case.batches("adapt", replace(local, epochs=1, steps=1)),
    )
    states, records = case.run_rounds(algorithm(**settings))
    uniform = settings.get("weighting") == "uniform"
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], f"round {t}")
        case.assert_two_models(record, models)
        assert_steps(record, case.cohorts[t], *[batches[t]] * (2 if first_order else 4))
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, 1 if uniform else None)
    taken = sum(record["clients"]["local_steps"] for record in records)
    most = algorithm(**settings).max_gradients(case.federation, 3)
    assert (taken <= most).all() and (taken == most).any() == pattern.startswith("full")


def test_new_clients_adapt_the_servers_model():
    case = Case(1, scored=False)
    start, rate = case.initial("server"), 0.5 * case.rates[0]
    made = personalized(algorithm(inner_factor=0.5), case)
    (batches,) = case.batches("adapt")
    wanted = [local_sgd.sgd(start, own, case.x, case.y, rate) for own in batches]
    assert_models(made, wanted, "new clients")


def by_hand(start, federation, settings):
    """(params, statistics, mean loss) of one step with momentum that has no past, and decay 0.1."""
    count = 3 if settings else 2
    batches, rng = batches_of_a_step(
        federation, replace(federation.schedule, batches_per_step=count)
    )
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
        if settings:
            _, back = jax.vjp(lambda w: jax.grad(loss, has_aux=True)(w, 2)[0], w)
            d = jax.tree.map(lambda d, h: d - alpha * h, d, back(d)[0])
        params = jax.tree.map(lambda p, d: p - 0.3 * (d + 0.1 * p), w, d)
        return {**after, "params": params}, first

    return step(start)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [pytest.param({}, marks=pytest.mark.slow), HESSIAN],
                         ids=["FO", "HF"])  # fmt: skip
def test_noise_statistics_and_decay_by_hand(settings):
    """Each minibatch has noise of its own, the second pass makes the statistics; plain trials."""
    federation = toy_federation(
        (6,), (3,), model=Noisy(), batch_size=2, local_steps=1, momentum=0.5, weight_decay=0.1
    )
    ours = algorithm(inner_factor=0.5, **settings)
    (start, end), (record,) = run_rounds(ours, federation, 1, scored=())
    wanted, loss = by_hand(start.server, federation, settings)
    assert_close(end.server, wanted, "server")
    np.testing.assert_allclose(record["clients"]["train_loss"], [loss], 1e-9)


def test_a_step_without_a_second_minibatch_moves_nothing():
    """Neither by the local optimizer's weight decay."""
    federation, ours = toy_federation((1,), (2,), weight_decay=0.1), algorithm()
    (start, end), (record,) = run_rounds(ours, federation, 1, scored=())
    assert_close(end.server, start.server, "server", 0)
    assert record["clients"]["train_loss"] > 0.1 and record["clients"]["local_steps"] == 4
    assert ours.has_step(toy_federation()).tolist() == [True, True, False, True, True]
    whole = ours.has_step(toy_federation(drop_last=True))  # of two minibatches of 4
    assert whole.tolist() == [False, False, False, True, False]


def test_a_batch_of_all_samples_is_two_halves():
    ours, federation = algorithm(passes=1), toy_federation((6,), (3,), batch_size=100)
    assert ours.has_step(federation).tolist() == [True]
    (step,) = pfl.training.batch_indices(
        ours.schedule(federation), federation.data.train, jax.random.key(0), 0, 0
    )
    assert [len(half) for half in step] == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, HESSIAN], ids=["FO", "HF"])
def test_without_a_trial_step_it_is_fedavg_on_the_second_minibatches(settings):
    """One client whose first minibatches nobody uses; the copies that are scored do not move."""
    federation = toy_federation((6,), (3,), batch_size=2, local_steps=1)
    start, end = states_of(algorithm(inner_factor=0.0, **settings), federation, 1)
    count = 3 if settings else 2
    batches, _ = batches_of_a_step(federation, replace(federation.schedule, batches_per_step=count))
    g = jax.grad(lambda p: federation.task.loss({"params": p}, batches[1])[0])
    wanted = jax.tree.map(lambda p, g: p - 0.3 * g, *(f(start.server["params"]) for f in (dict, g)))
    assert_close(end.server["params"], wanted, "server")


def test_some_client_takes_a_step():
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
