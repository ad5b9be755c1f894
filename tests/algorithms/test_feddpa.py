"""FedDPA against its reference: two sets of adapters, and their weights by sample."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms import feddpa as ours
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import sampled_federation
from tests.algorithms.lora import ADAPTERS, ALPHA, RANK, base_of
from tests.references import feddpa
from tests.references.network import cross_entropy, logits

FACTOR = ALPHA / RANK


def both_sets(one):
    """The reference's base, and the clients' first own set as the library draws it."""
    own = jax.tree.map(lambda leaf: leaf[0], one.states[0].private["params"][ours.LOCAL]["hidden"])
    assert own["own_a"].shape == (4, RANK) and not own["own_b"].any()
    assert np.abs(own["own_a"] - one.setting.initial["hidden"]["lora_a"]).min() > 0
    return {
        "base": base_of(one.case),
        "own": {"lora_a": own["own_a"], "lora_b": own["own_b"]},
        "factor": FACTOR,
        "local_batches": one.case.batches("local"),
        "max_weight": one.settings["max_weight"],
        "by_instance": one.variant == "instance",
    }


def run(s, *, max_weight, by_instance, **options):
    """The reference, with the functions by which clients predict."""
    base = options["base"]

    def predictor(models, own, client):
        if by_instance:
            anchors = s.x[client["samples"]]
            return partial(feddpa.predicted, base, models, own, FACTOR, max_weight, anchors)
        return partial(logits, feddpa.mixed(base, models, own, FACTOR, max_weight))

    history = feddpa.run(s, **options)
    for known in history:
        models, owned = known["global"], known["own"]
        whole = feddpa.mixed(base, models, owned[0], FACTOR, 0.0)
        known["without own"] = [partial(logits, whole)] * len(owned)
        known["personalized"] = [
            predictor(models, own, client) for own, client in zip(owned, s.clients, strict=True)
        ]
    return history


test_reference, test_contract = comparison(
    "feddpa",
    run,
    settings={"local_weight": 0.3, "weighting": "size"},
    variants={
        "fixed": {"prediction_weights": "fixed", "max_weight": 0.8},
        "instance": {"instances": 100, "max_weight": 0.9},  # all samples of a client
    },
    options=ADAPTERS,
    ours=("prediction_weights", "instances"),
    given=both_sets,
    states={
        "server": "global",
        f"private.params.{ours.LOCAL}.hidden.own_a": "own.lora_a",
        f"private.params.{ours.LOCAL}.hidden.own_b": "own.lora_b",
    },
    scores={"global": "without own", "personalized": "personalized"},
    loss=lambda predict, x, y: cross_entropy(predict(x), y)[0],
    steps=("batches", "local_batches"),
)


@pytest.mark.costly
def test_few_instances_are_drawn():
    one = sampled_federation(**ADAPTERS)
    result = pfl.simulate(pfl.make_algorithm("feddpa", {"instances": 2}), one, 1)
    how = result.final.models()["personalized"][ours.MIXING]
    assert how["anchors"].shape[2:] == (2, 5)
    sizes = np.asarray(one.data.train.size)
    np.testing.assert_array_equal(how["valid"][0].sum(1), np.minimum(sizes, 2))


@pytest.mark.costly
def test_draws_are_of_the_runs_seed():
    algorithm = pfl.make_algorithm("feddpa", {"instances": 2})
    federation = algorithm.prepare(sampled_federation(**ADAPTERS)).with_backbone(jax.random.key(0))

    @jax.jit
    def anchors(key):
        ctx = pfl.Context(federation, key, jnp.int32(0), jnp.int32(1), None)
        models = ctx.replicate(federation.initial_model(jax.random.key(0)))
        return algorithm.mixed(ctx, models, jnp.arange(5))[ours.MIXING]["anchors"]

    found = [anchors(jax.random.key(k)) for k in (0, 0, 1)]
    np.testing.assert_array_equal(*found[:2])
    assert (found[0][3] != found[2][3]).any()  # of ten samples


def test_padded_instances_do_not_count():
    rng = np.random.default_rng(0)
    z, anchors = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    valid = np.array([True, False, True, False, False])
    unit = [one / np.linalg.norm(one, axis=1, keepdims=True) for one in (z, anchors[valid])]
    similarity = jax.jit(ours.similarity)
    found = similarity(z, anchors, valid)
    np.testing.assert_allclose(found, (unit[0] @ unit[1].T).mean(axis=1), 1e-12)
    none = similarity(z, anchors, np.zeros(5, bool))
    np.testing.assert_array_equal(none, 0)


@pytest.mark.costly
def test_training_has_one_weight_for_all_samples():
    federation = pfl.make_algorithm("feddpa").prepare(sampled_federation(**ADAPTERS))
    federation = federation.with_backbone(jax.random.key(0))
    task, x = federation.task, jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)))
    model = federation.initial_model(jax.random.key(0))
    model = jax.tree.map(lambda leaf: leaf + 0.1, model)  # factors B begin at zero
    weight = {"weight": jnp.asarray(0.7)}
    anchors = {"anchors": jnp.ones((2, 5)), "valid": jnp.ones(2, bool)}
    mode = None, jnp.ones(6, bool)
    wanted = task.outputs({**model, ours.MIXING: weight}, x, False, *mode).logits
    both = {**model, ours.MIXING: weight | anchors}
    np.testing.assert_allclose(task.outputs(both, x, True, *mode).logits, wanted, 1e-9)
    assert np.abs(task.outputs(both, x, False, *mode).logits - wanted).max() > 1e-3


@pytest.mark.costly
def test_without_adapters_it_is_fedavg():
    one, algorithm = sampled_federation(), pfl.make_algorithm("feddpa", {"weighting": "size"})
    states, _ = run_rounds(algorithm, one)
    plain, _ = run_rounds(pfl.make_algorithm("fedavg"), one)
    assert_close(states[-1].server, plain[-1].server, "server")


@pytest.mark.costly
def test_new_clients_train_an_own_set():
    trained, new = pfl.split_new_clients(
        toy_federation(model=TanhNetwork(), validation_size=0, dtype="float32", **ADAPTERS), 2
    )
    result = pfl.simulate(pfl.make_algorithm("feddpa"), trained, 2)
    models = result.final.personalize(new)
    server = result.final.states.server["params"]
    for name in ("lora_a", "lora_b"):
        made = models["params"]["hidden"][name]
        for k in range(2):
            np.testing.assert_array_equal(made[0, k], server["hidden"][name][0])
    own = models["params"][ours.LOCAL]["hidden"]["own_b"]
    assert np.abs(own).max() > 0 and np.abs(own[0, 0] - own[0, 1]).max() > 0
    assert models[ours.MIXING]["anchors"].shape[:2] == (1, 2)
