"""FedDPA against its reference: two sets of adapters, and their weights by sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms import feddpa as ours
from fedjax_pfl.testing.toys import (
    OverflowingNormed,
    TanhNetwork,
    assert_close,
    run_rounds,
    toy_federation,
)
from tests.algorithms.harness import PATTERNS, Case, assert_losses, over, sampled_federation
from tests.algorithms.test_fedex_lora import ADAPTERS, ALPHA, RANK, base_of
from tests.references import feddpa

FACTOR = ALPHA / RANK
VARIANTS = {
    "default": {},
    "fixed": {
        "prediction_weights": "fixed",
        "local_weight": 0.3,
        "max_weight": 0.8,
        "weighting": "size",
    },
}


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def first(case):
    """(global adapters and head, own set) before the first round."""
    params = dict(case.initial())
    own = params.pop(ours.LOCAL)["hidden"]
    return params, {"lora_a": own["own_a"], "lora_b": own["own_b"]}


@over(PATTERNS, [("partial-map", "default"), ("full-vmap", "fixed")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern], **ADAPTERS), VARIANTS[variant]
    algorithm = pfl.make_algorithm("feddpa", settings)
    case.federation = algorithm.prepare(case.federation)
    model, own = first(case)
    assert own["lora_a"].shape == (4, RANK) and not own["lora_b"].any()
    assert np.abs(own["lora_a"] - model["hidden"]["lora_a"]).min() > 0
    more = {"base": base_of(case), "own": own, "factor": FACTOR}
    more |= {"local_batches": case.batches("local")}
    more |= {k: settings[k] for k in ("local_weight", "weighting") if k in settings}
    wanted = feddpa.run(model, case.clients(), 3, **case.common(), **more)
    states, records = case.run_rounds(algorithm)
    for state, record, known in zip(states[1:], records, wanted, strict=True):
        server = {k: part for k, part in state.server["params"].items() if k != ours.LOCAL}
        assert_close(server, known["global"], "global")
        kept = state.private["params"][ours.LOCAL]["hidden"]
        for name, leaf in (("own_a", "lora_a"), ("own_b", "lora_b")):
            np.testing.assert_allclose(kept[name], [one[leaf] for one in known["own"]], 0, 1e-9)
        whole = feddpa.mixed(more["base"], known["global"], own, FACTOR, 0.0)
        assert_losses(record, case, "global", [whole] * case.num_clients)
        if variant == "fixed":
            plain = [
                feddpa.mixed(more["base"], known["global"], one, FACTOR, 0.8)
                for one in known["own"]
            ]
            assert_losses(record, case, "personalized", plain)


def test_each_sample_has_its_own_weight():
    settings = {"instances": 100, "max_weight": 0.9}  # all samples of a client
    case = Case(**PATTERNS["partial-map"], **ADAPTERS)
    algorithm = pfl.make_algorithm("feddpa", settings)
    result = pfl.simulate(algorithm, case.federation, 2)
    models = jax.tree.map(lambda x: np.asarray(x[0, 1]), result.final.models()["personalized"])
    params, how = models["params"], models[ours.MIXING]
    own = params[ours.LOCAL]["hidden"]
    samples = case.x[case.samples(1)]
    assert how["valid"].sum() == len(samples)
    saved = jax.tree.map(lambda x: np.asarray(x[0]), result.final.backbone())["params"]["hidden"]
    x = np.random.default_rng(0).normal(size=(4, 4))
    wanted = feddpa.predicted(
        saved,
        {"hidden": params["hidden"], "head": params["head"]},
        {"lora_a": own["own_a"], "lora_b": own["own_b"]},
        FACTOR,
        0.9,
        samples,
        x,
    )
    client = int(case.federation.data.ids[1])
    np.testing.assert_allclose(result.predict(client, x, outputs=True), wanted, 0, 1e-9)


def test_few_instances_are_drawn():
    one = sampled_federation(**ADAPTERS)
    result = pfl.simulate(pfl.make_algorithm("feddpa", {"instances": 2}), one, 1)
    how = result.final.models()["personalized"][ours.MIXING]
    assert how["anchors"].shape[2:] == (2, 5)
    sizes = np.asarray(one.data.train.size)
    np.testing.assert_array_equal(how["valid"][0].sum(1), np.minimum(sizes, 2))


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
    found = ours.similarity(jnp.asarray(z), jnp.asarray(anchors), jnp.asarray(valid))
    np.testing.assert_allclose(found, (unit[0] @ unit[1].T).mean(axis=1), 1e-12)
    none = ours.similarity(jnp.asarray(z), jnp.asarray(anchors), jnp.zeros(5, bool))
    np.testing.assert_array_equal(none, 0)


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


@pytest.mark.thorough
def test_without_weight_it_is_fedavg_of_the_global_set():
    """Also its running statistics, which are not those of the own sets' training."""
    one = sampled_federation(model=OverflowingNormed(3, (5,)), freeze="fc_0/kernel", **ADAPTERS)
    settings = {"prediction_weights": "fixed", "max_weight": 0.0, "weighting": "size"}
    states, records = run_rounds(pfl.make_algorithm("feddpa", settings), one)
    plain, wanted = run_rounds(pfl.make_algorithm("fedavg"), one)
    for record, other in zip(records, wanted, strict=True):
        assert set(record["scores"]) == set(other["scores"])
        assert_close(record["scores"], other["scores"], "scores")
    server, wanted = states[-1].server, plain[-1].server
    params = {k: part for k, part in server["params"].items() if k != ours.LOCAL}
    assert_close({**server, "params": params}, wanted, "server")
    assert wanted["batch_stats"]["bn"]["mean"].any()


@pytest.mark.thorough
def test_without_adapters_it_is_fedavg():
    one, algorithm = sampled_federation(), pfl.make_algorithm("feddpa", {"weighting": "size"})
    assert algorithm.remarks(one) == ["no adapters with both factors trained: FedAvg"]
    assert len(algorithm.schedules(one)) == 1
    states, _ = run_rounds(algorithm, one)
    plain, _ = run_rounds(pfl.make_algorithm("fedavg"), one)
    assert_close(states[-1].server, plain[-1].server, "server")


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_weight": 1.1}, r"local_weight must be in \[0, 1\]"),
        ({"max_weight": -0.1}, r"max_weight must be in \[0, 1\]"),
        ({"instances": 0}, "instances must be at least 1"),
    ],
)
def test_values_that_can_not_be(settings, message):
    with pytest.raises(pfl.InputError, match=message):
        pfl.make_algorithm("feddpa", settings)


def test_refusals():
    one = sampled_federation(share="*lora_a,head", **ADAPTERS)
    with pytest.raises(pfl.InputError, match="needs both factors of each adapter, and share"):
        pfl.Simulation(pfl.make_algorithm("feddpa"), one).check()
    ranks = sampled_federation(lora_ranks="1,2")
    with pytest.raises(pfl.InputError, match="feddpa needs adapters of one rank"):
        pfl.Simulation(pfl.make_algorithm("feddpa"), ranks).check()
