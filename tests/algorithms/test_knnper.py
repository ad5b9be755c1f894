"""kNN-Per against its reference: votes, the choice of lambda, new clients; without votes FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.knnper import MEMORY, WEIGHTS, Remembering
from fedjax_pfl.models.task import as_task
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_losses, over, sampled_federation
from tests.engine.finals import final_in
from tests.references import knnper

VARIANTS = {"default": {}, "tuned": {"neighbours": 2, "weight": 0.3, "scale": 0.1, "tuned": True}}
QUICK = [("partial-map", "default"), ("full-vmap", "tuned")]


def algorithm(**settings):
    return pfl.make_algorithm("knnper", settings)


def case_of(pattern, variant):
    validation = {"validation_size": (4, 0, 3, 5, 4)} if variant == "tuned" else {}
    return Case(**PATTERNS[pattern] | validation | {"scored": True})


def everyones(case):
    parts = {"samples": "train", "validation": "validation", "test": "test"}
    return [
        {name: case.samples(i, split) for name, split in parts.items()}
        for i in range(case.num_clients)
    ]


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    case, settings = case_of(pattern, variant), VARIANTS[variant]
    clients = everyones(case)
    wanted = knnper.run(case.initial(), clients, 3, **case.common(), **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        assert_close(state.server["params"], models["global"], "global")
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        for i, (client, mixed) in enumerate(zip(clients, models["mixed"], strict=True)):
            if len(mixed) == 0:
                continue
            labels = case.y[client["test"]]
            loss = -np.log(mixed[np.arange(len(mixed)), labels]).mean()
            found = record["scores"]["personalized/test/loss"][i]
            np.testing.assert_allclose(found, loss, 1e-9, err_msg=f"client {i}")
    if variant == "tuned":
        assert len({models["weights"][0] for models in wanted} | set(wanted[-1]["weights"])) > 2
        final = final_in(states[-1], algorithm(**settings), case.federation, case.rounds)
        made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
        np.testing.assert_allclose(made[MEMORY]["weight"], wanted[-1]["weights"], 1e-12)
        for i, client in enumerate(clients):
            valid = made[MEMORY]["valid"][i]
            labels = made[MEMORY]["labels"][i][valid]
            np.testing.assert_array_equal(labels, case.y[client["samples"]])


def test_weights_are_tenths_from_none_to_all():
    np.testing.assert_allclose(WEIGHTS, np.linspace(0, 1, 11))


@pytest.mark.thorough
def test_without_votes_it_is_fedavg():
    federation = sampled_federation()
    _, records = run_rounds(algorithm(weight=0.0), federation)
    _, plain = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for ours, other in zip(records, plain, strict=True):
        for name, values in other["scores"].items():
            np.testing.assert_allclose(ours["scores"][name], values, 1e-9, err_msg=name)


@pytest.mark.parametrize("leaves", ["head", "body"])
def test_adaptation_of_a_part_of_the_network(leaves):
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


@pytest.mark.thorough
def test_models_of_some_clients_have_their_own_weights():
    federation = case_of("full-vmap", "tuned").federation
    ours = algorithm(**VARIANTS["tuned"])
    federation = ours.prepare(federation)
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(1), None)

    @jax.jit
    def weights(rows):
        named = ours.models(ctx, ours.init(ctx), rows)
        return named["personalized"][MEMORY]["weight"]

    every, some = weights(jnp.arange(5)), weights(jnp.asarray([1, 0]))
    assert every[1] == 0.3 != every[0]  # it has no validation samples
    np.testing.assert_array_equal(some, every[jnp.asarray([1, 0])])


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


@pytest.mark.thorough
def test_a_memory_of_far_or_few_samples(remembering):
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


def test_training_does_not_ask_the_memory(remembering):
    task, model, inputs, z = remembering
    full = {**model, MEMORY: memory(z, [0, 1, 2], [True] * 3)}
    key = jax.random.key(1)
    for found, wanted in zip(
        task.outputs(full, inputs, True, key, None),
        task.outputs(model, inputs, True, key, None),
        strict=True,
    ):
        assert_close(found, wanted, "outputs")
