"""FedPHP against its reference, its discrepancy, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedphp import discrepancy
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_models,
    assert_steps,
    over,
    sampled_federation,
)
from tests.references import fedphp

VARIANTS = {
    "mmd": {"weight": 0.4},
    "distillation": {"weight": 0.6, "regularizer": "distillation", "inheritance": 0.5},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedphp", settings)


@over(PATTERNS, [("partial-map", "mmd"), ("full-vmap", "distillation")], VARIANTS)
def test_reference(pattern, variant):
    settings, case = VARIANTS[variant], Case(**PATTERNS[pattern])
    common = case.common(ratio=PATTERNS[pattern].get("participation", 1.0))
    wanted = fedphp.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.own, models["personalized"], "personalized")
        case.assert_two_models(record, models)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        frozen = 4 * record["clients"]["local_steps"]  # one network, minibatches of 4
        np.testing.assert_array_equal(record["clients"]["forward_samples"], frozen)
        case.assert_whole_models(record, t)
    taken = [sum(i in cohort for cohort in case.cohorts) for i in range(case.num_clients)]
    np.testing.assert_array_equal(states[-1].rounds, taken)


def test_without_a_regularizer_the_servers_model_is_fedavgs():
    federation = sampled_federation()
    ours = algorithm(weight=0, inheritance=0)
    states, _ = run_rounds(ours, federation)
    wanted, _ = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server")


def test_training_without_labels_is_told():
    plain, alone = (algorithm(weight=w).remarks(sampled_federation()) for w in (0.5, 1))
    assert alone == [*plain, "weight is 1: trained without labels"]


def test_the_discrepancy_ignores_padding():
    rng = np.random.default_rng(0)
    z, other = rng.normal(size=(2, 6, 4)) + np.arange(2)[:, None, None]
    valid = np.array([1, 1, 0, 1, 1, 0], bool)
    found, back = jax.vjp(lambda rows: discrepancy(rows, other, valid), jnp.asarray(z))
    value, slope = fedphp.discrepancy(z[valid], other[valid])
    assert found == pytest.approx(value, rel=1e-12) and found > 0.1
    (gradient,) = back(jnp.ones(()))
    np.testing.assert_allclose(gradient[valid], slope, 1e-10)
    assert not gradient[~valid].any()
    assert discrepancy(z, z, valid) == pytest.approx(0, abs=1e-12)


@pytest.mark.thorough
def test_who_diverges_keeps_its_private_model():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    before, after = states_of(algorithm(), federation, 1)
    leaves = (state.own["params"]["head"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*leaves).any(axis=1), [1, 1, 1, 0, 1])
    np.testing.assert_array_equal(after.rounds, [1, 1, 1, 0, 1])
    assert_close(algorithm().new_client_start(None, after), after.server, "of new clients", 0)


def test_private_models_inherit_no_more_after_the_usual_rounds():
    federation = toy_federation(participation=0.6)
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(4), None)
    kept = algorithm().kept(ctx, jnp.arange(4))  # K = int(0.6 * 4) = 2
    np.testing.assert_allclose(kept, [0, 0.45, 0.9, 0.9], 1e-12)
