"""kNN-Per against its reference: votes, the choice of lambda, new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.knnper import MEMORY, WEIGHTS, Remembering
from fedjax_pfl.models.task import as_task
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import maker
from tests.references import knnper

TUNED = {"neighbours": 2, "weight": 0.3, "scale": 0.1, "tuned": True}
VALIDATION = (4, 0, 3, 5, 4)


algorithm = maker("knnper")


def clients_with_splits(one):
    parts = {"samples": "train", "validation": "validation", "test": "test"}
    case = one.case
    return {
        "clients": [
            {name: case.samples(i, split) for name, split in parts.items()}
            for i in range(case.num_clients)
        ]
    }


def assert_mixed_losses(now):
    for i, mixed in enumerate(now.wanted["mixed"]):
        if now.case.scored and len(mixed):
            labels = now.case.y[now.case.samples(i, "test")]
            loss = -np.log(mixed[np.arange(len(mixed)), labels]).mean()
            found = now.record["scores"]["personalized/test/loss"][i]
            np.testing.assert_allclose(found, loss, 1e-9, err_msg=f"client {i}")


def assert_new_clients(one):
    """The same clients, as new ones: their weights and memories."""
    if not one.algorithm.tuned:
        return
    case, wanted = one.case, one.wanted
    assert len({models["weights"][0] for models in wanted} | set(wanted[-1]["weights"])) > 2
    made = one.personalized()[MEMORY]
    np.testing.assert_allclose(made["weight"], wanted[-1]["weights"], 1e-12)
    for i in range(case.num_clients):
        labels = made["labels"][i][made["valid"][i]]
        np.testing.assert_array_equal(labels, case.y[case.samples(i)])


test_reference, test_contract = comparison(
    "knnper",
    knnper.run,
    variants={
        "default": {"weight": 0.3, "scale": 0.4},
        "tuned": Variant(TUNED, options={"validation_size": VALIDATION}),
    },
    given=clients_with_splits,
    states={"server": "global"},
    scores={"global": "global"},
    check=assert_mixed_losses,
    finish=assert_new_clients,
)


def test_weights_to_choose_from():
    np.testing.assert_allclose(WEIGHTS, np.linspace(0, 1, 11))


@pytest.mark.costly
@pytest.mark.parametrize("leaves", ["head", "body"])
def test_adaptation_leaves_the_memory(leaves):
    """It trains that part of the copies; the memory is no part of it and stays."""
    federation = algorithm().prepare(toy_federation((4, 2), (2, 2), dtype="float32"))
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(1), None)

    @jax.jit
    def made():
        models = algorithm().models(ctx, algorithm().init(ctx), jnp.arange(2))["personalized"]
        return models, ctx.adapt(models, jnp.arange(2), pfl.Adaptation(steps=1, leaves=leaves))

    before, after = made()
    assert_close(after[MEMORY], before[MEMORY], "memory", 0)
    moved = {
        name: not np.array_equal(layer["kernel"], before["params"][name]["kernel"])
        for name, layer in after["params"].items()
    }
    assert moved == {"fc_0": leaves == "body", "head": leaves == "head"}


@pytest.mark.costly
def test_tuned_models_of_some_clients():
    CHECKS["models_of_some_clients"](algorithm(**TUNED))


@pytest.fixture(scope="module")
def remembering():
    """The task with two neighbours, a model, and inputs with their features."""
    task = Remembering.around(as_task(TanhNetwork()), 2)
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), "float32")
    model = task.init(jax.random.key(0), inputs)
    return task, model, inputs, task.features(model, inputs)


def memory(features, labels, valid, weight=1.0, scale=1.0):
    labels, valid = jnp.asarray(labels), jnp.asarray(valid)
    return {"features": features, "labels": labels, "valid": valid, "weight": jnp.float32(weight),
            "scale": jnp.float32(scale)}  # fmt: skip


@pytest.mark.costly
def test_votes_of_far_or_few_samples(remembering):
    """Votes have sum 1 however far the neighbours are; padding has none; none: the network's."""
    task, model, inputs, z = remembering
    far = {**model, MEMORY: memory(z + 100, [0, 1, 2], [True, True, False])}
    votes = np.exp(task.predict(far, inputs))
    np.testing.assert_allclose(votes.sum(axis=1), 1, 1e-5)
    np.testing.assert_allclose(votes[:, 2], 0, atol=1e-6)
    one = {**model, MEMORY: memory(z, [2, 1, 0], [True, False, False])}
    np.testing.assert_allclose(np.exp(task.predict(one, inputs))[:, 2], 1, 1e-5)
    none = {**model, MEMORY: memory(z, [2, 1, 0], [False] * 3)}
    wanted = jax.nn.log_softmax(task.predict(model, inputs))
    np.testing.assert_allclose(task.predict(none, inputs), wanted, 1e-5, 1e-6)


@pytest.mark.costly
def test_training_ignores_the_memory(remembering):
    task, model, inputs, z = remembering
    full = {**model, MEMORY: memory(z, [0, 1, 2], [True] * 3)}
    ours, plain = (task.outputs(m, inputs, True, jax.random.key(1), None) for m in (full, model))
    assert_close(tuple(ours), tuple(plain), "outputs")
