"""IFCA against its reference, its first models and groups, and the choice of new clients."""

from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.common.best_model import best_fitting
from fedjax_pfl.algorithms.ifca import enough_takers, random_groups
from fedjax_pfl.engine.new_clients import split_new_clients
from fedjax_pfl.testing.toys import states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, assert_models, stack
from tests.engine.finals import final_in
from tests.references import ifca
from tests.references.local_sgd import sgd


def algorithm(**settings):
    return pfl.make_algorithm("ifca", settings)


def draw(case, clusters, number=0):
    """First models as the library draws them for the `number`-th time."""
    models = []
    for name in ["init", *(f"init{k}" for k in range(1, clusters))]:
        key = keys.derive(case.key, name)
        key = jax.random.fold_in(key, number) if number else key
        models.append(jax.tree.map(np.asarray, case.federation.initial_model(key)["params"]))
    return models


def clients_of(case):
    return [
        {"samples": case.samples(i), "test": case.samples(i, "test")}
        for i in range(case.num_clients)
    ]


def groups_of(case, clusters):
    ctx = pfl.Context(case.federation, case.key, jnp.int32(0), jnp.int32(1), case.cohort(0))
    return np.asarray(random_groups(ctx, clusters))


def first_models(one):
    case, number, settings = one.case, one.algorithm.clusters, one.settings
    given = {"initial": draw(case, number), "clients": clients_of(case)}
    if settings.get("initial") == "balanced_redraw":
        draws = (draw(case, number, k) for k in count())
        given["initial"] = ifca.balanced(draws, clients_of(case), case.x, case.y)
        kernels = [models[0]["head"]["kernel"] for models in (given["initial"], draw(case, number))]
        assert not np.array_equal(*kernels)  # the first draw does not do
    if settings.get("initial") == "group_warmup":
        given["groups"] = groups_of(case, number)
    assert_models(one.states[0].models, given["initial"], "first models")
    return given


def assert_record(now):
    case, record, ours, present = now.case, now.record, now.compared.algorithm, now.present
    chosen = [now.wanted["clusters"].get(i, np.nan) for i in range(5)]
    np.testing.assert_array_equal(now.clients["cluster"], chosen)
    assert (record["up"] == present[:, None]).all()
    # In the warm-up the server names the model to take.
    free = ours.initial != "group_warmup" or now.t >= ours.warmup_rounds
    assert (record["down"] == (ours.clusters if free else 1) * present[:, None]).all()
    forward = ours.clusters * case.sizes * present * free
    np.testing.assert_array_equal(now.clients["forward_samples"], forward)
    if ours.averaging == "gradients":
        steps = -(-case.sizes // 4)
        assert_full_gradients(now)
    else:
        steps = [len(own) for own in now.batches()]
        same = np.equal.outer(chosen, chosen) * (case.sizes if ours.weighting == "size" else 1)
        mixed = np.where(present[:, None], same / same.sum(1, keepdims=True).clip(1), np.eye(5))
        np.testing.assert_allclose(record["matrices"]["mixing"], mixed, 1e-9)
    np.testing.assert_array_equal(now.clients["local_steps"], present * steps)


def assert_full_gradients(now):
    """No model is mixed, and the training loss is that of the chosen model."""
    assert not now.record["matrices"]
    one, t = now.compared, now.t
    models = one.wanted[t - 1]["models"] if t else one.setting.initial
    for i in now.cohort:
        at = now.case.samples(i)
        lowest = min(ifca.loss_and_gradient(m, now.case.x[at], now.case.y[at])[0] for m in models)
        np.testing.assert_allclose(now.clients["train_loss"][i], lowest, 1e-9)


test_reference, test_contract = comparison(
    "ifca",
    ifca.run,
    variants={
        "three": {"clusters": 3},
        "warm-up, uniform": {
            "initial": "group_warmup",
            "warmup_rounds": 1,
            "weighting": "uniform",
        },
        "gradients, by test, one client late": Variant(
            {"averaging": "gradients", "scored_by": "test"},
            options={"participation": 1.0, "stragglers": {0: 1}},
        ),
        "balanced": {"initial": "balanced_redraw"},
    },
    ours=("clusters", "initial"),
    given=first_models,
    states={"models": "models"},
    scores={"personalized": "personalized"},
    steps=(),
    copies=None,
    check=assert_record,
)


@pytest.mark.costly
def test_balanced_redraw_keeps_the_most_even_draw(monkeypatch):
    """Of three draws each gives one model to too few clients; ties go to the earlier draw."""
    monkeypatch.setattr("fedjax_pfl.algorithms.ifca.DRAWS", 3)
    case = Case()
    ctx = pfl.Context(case.federation, case.key, jnp.int32(0), jnp.int32(1), case.cohort(0))
    made = jax.jit(lambda: algorithm(initial="balanced_redraw").init(ctx))()
    draws = [draw(case, 2, k) for k in range(3)]
    wanted = ifca.balanced(draws, clients_of(case), case.x, case.y)
    assert wanted is draws[0]
    assert_models(made.models, wanted, "first models")


@pytest.mark.parametrize(
    ("clusters", "clients", "wanted"),
    [(1, 20, 0), (2, 20, 7), (2, 21, 8), (4, 20, 2), (4, 21, 3), (5, 50, 4), (3, 15, 2)],
)
def test_enough_takers(clusters, clients, wanted):
    assert enough_takers(clusters, clients) == wanted


def test_random_groups_are_even_and_follow_permanent_ids():
    case = Case()
    groups, ids = groups_of(case, 2), np.asarray(case.federation.data.ids)
    assert sorted(np.bincount(groups)) == [2, 3]
    assert np.bincount(groups_of(case, 3), minlength=3).min() == 1
    order = np.array([4, 3, 2, 1, 0])
    np.testing.assert_array_equal(groups_of(Case(order=order), 2), groups[np.argsort(ids)][order])


@pytest.mark.costly
def test_best_fitting_of_equal_and_of_infinite_models():
    """Ties go to the lowest number."""
    case = Case()
    ctx = pfl.Context(case.federation, case.key, jnp.int32(0), jnp.int32(1), case.cohort(0))
    choose = jax.jit(lambda models: best_fitting(ctx, models)[0])
    models = stack([case.initial()] * 3)
    np.testing.assert_array_equal(choose(models), 0)
    models["params"]["head"]["bias"][0] = np.nan
    np.testing.assert_array_equal(choose(models), 1)


@pytest.mark.costly
def test_new_clients_train_the_model_that_fits_best():
    case, steps = Case(), 2
    left, new = split_new_clients(case.federation, 2)
    states = states_of(algorithm(clusters=3), left, 2)
    new = new.with_training(local_steps=steps)
    made = final_in(states[-1], algorithm(clusters=3), left, 2).personalize(new)
    models = [jax.tree.map(lambda leaf, k=k: np.asarray(leaf[k]), states[-1].models["params"])
              for k in range(3)]  # fmt: skip
    key, ids = keys.of_round(case.key, "personalize", 1), case.federation.data.ids.tolist()
    wanted, chosen = [], []
    for row in range(2):
        at = case.samples(3 + row)
        chosen.append(ifca.choose(models, at, case.x, case.y))
        batches = pfl.training.batch_indices(new.schedule, new.data.train, key, ids[3 + row], row)
        batches = [np.asarray(batch) for (batch,) in batches]
        wanted.append(sgd(models[chosen[-1]], batches, case.x, case.y, case.rates[1]))
    assert chosen != [0, 0]
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")


def test_clients_of_gradients_need_samples_and_no_local_steps():
    federation = toy_federation((1, 0), (1, 1), drop_last=True)
    with pytest.raises(pfl.InputError, match="No client would take a local step"):
        pfl.Simulation(algorithm(), federation).check()
    assert algorithm(averaging="gradients").has_step(federation).tolist() == [True, False]


def test_remarks():
    def said(**settings):
        return algorithm(**settings).remarks(toy_federation())

    assert said() == []
    assert said(averaging="gradients", scored_by="test") == [
        "one step along full gradients a round, without local training",
        "each client's model is chosen by its test labels",
    ]
