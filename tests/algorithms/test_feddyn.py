"""FedDyn against its reference, its invariants, and the errors of other codes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import assert_close, first_run, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over, stack
from tests.models.test_normalization import NormNet
from tests.references import feddyn

VARIANTS = {"equal": {}, "size": {"scaling": "size", "score_last": True}}
ALPHA = 0.4


def algorithm(**settings):
    return pfl.make_algorithm("feddyn", {"alpha": ALPHA} | settings)


@over(PATTERNS, [("full-vmap", "equal"), ("partial-map", "size")], VARIANTS)
def test_reference(pattern, variant):
    """With h, and with the squared norm: codes have been seen to lack the one or root the other."""
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common, scaling = case.common(), settings.get("scaling", "equal")
    wanted = feddyn.run(case.initial(), case.clients(), 3, **common, alpha=ALPHA, scaling=scaling)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "theta")
        assert_close(state.average["params"], models["average"], "average")
        assert_close(state.drift, models["h"], "h")
        assert_close(state.gradients, stack(models["gradients"])["params"], "g_i")
        named = {"personalized": "global", "global": "global", "average": "average"}
        if settings:
            assert_close(state.last, stack(models["trained"]), "last models")
            named["everyone"] = "everyone"
        for name, which in named.items():
            assert_losses(record, case, name, [models[which]] * case.num_clients)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_mean(record, t, 1)
        case.assert_whole_models(record, t)


def assert_drift(states):
    for state in states:
        mean = jax.tree.map(lambda leaf: leaf.mean(0), state.gradients)
        assert_close(state.drift, mean, "h")
    assert max(abs(leaf).max() for leaf in jax.tree.leaves(states[-1].drift)) > 1e-3


@pytest.mark.thorough
def test_h_is_the_mean_of_all_clients():
    """Under sampling, and though one client always diverges and keeps its last model."""
    federation = toy_federation(participation=0.6, diverging=1, validation_size=0)
    states = states_of(algorithm(score_last=True), federation)
    assert_drift(states)
    kernel = states[-1].last["params"]["head"]["kernel"]
    moved = (kernel != states[0].last["params"]["head"]["kernel"]).any(axis=(1, 2))
    assert moved.any() and not moved[1]


def test_rounds_without_uploads_change_nothing():
    late = dict.fromkeys(range(5), 1)  # on time in every third round alone
    states = states_of(algorithm(), toy_federation(stragglers=late, validation_size=0))
    assert_drift(states)
    for still in (0, 1, 3):
        assert_close(states[still + 1], states[still], f"round {still + 1}", 0)


def test_a_client_that_knows_its_gradient_stays():
    """Where g_i is the gradient of f_i at theta, no step leaves theta; h alone moves it."""
    federation = toy_federation((6,) * 5, (3,) * 5, batch_size=6, local_steps=3, validation_size=0)
    ours, train = algorithm(), federation.data.train
    federation = ours.prepare(federation)
    program = Program(make_runs(ours, federation, [0]), federation, 1, capacity=1, scored=())
    start = program.start()
    theta = first_run(start).server["params"]

    @jax.jit
    def slope(index):
        samples = federation.data.samples[index].astype(float), federation.data.labels[index]
        batch = pfl.training.Batch(*samples, jnp.ones(6, bool))
        return jax.grad(lambda params: federation.task.loss({"params": params}, batch)[0])(theta)

    own = jax.vmap(slope)(jnp.asarray(train.index).reshape(5, 6))
    mean = jax.tree.map(lambda g: g.mean(0), own)
    begun = replace(start, **jax.tree.map(lambda x: x[None], {"gradients": own, "drift": mean}))
    after = first_run(program.advance(begun, 0, 1).states)
    assert_close(after.gradients, own, "g_i", 1e-12)
    assert_close(after.average["params"], theta, "the y_i", 1e-12)
    assert_close(after.drift, mean, "h", 1e-12)
    moved = jax.tree.map(lambda w, h: w - h / ALPHA, theta, mean)
    assert_close(after.server["params"], moved, "theta", 1e-12)


@pytest.mark.thorough
def test_running_statistics_are_averaged():
    """theta's step is none of theirs."""
    first, second, third = states_of(algorithm(), toy_federation(model=NormNet()), 2)
    for state in (second, third):
        assert_close(state.server["batch_stats"], state.average["batch_stats"], "statistics", 0)
    mean = first.server["batch_stats"]["bn"]["mean"]
    assert (third.server["batch_stats"]["bn"]["mean"] != mean).all()
