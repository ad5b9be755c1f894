"""FedNTD against its reference, its term, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedntd import not_true_distillation
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, QUICK, Case, assert_steps, over, sampled_federation
from tests.references import fedntd

SETTINGS = {"beta": 1.5, "tau": 0.6}


def algorithm(**settings):
    return pfl.make_algorithm("fedntd", settings)


@over(PATTERNS, QUICK)
def test_reference(pattern):
    case = Case(**PATTERNS[pattern])
    common = case.common()
    wanted = fedntd.run(case.initial(), case.clients(), 3, **common, **SETTINGS)
    states, records = case.run_rounds(algorithm(**SETTINGS))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        frozen = 4 * record["clients"]["local_steps"]  # one network, minibatches of 4
        np.testing.assert_array_equal(record["clients"]["forward_samples"], frozen)
        case.assert_whole_models(record, t)


@pytest.mark.thorough
def test_without_the_term_it_is_fedavg_to_the_bit():
    federation = sampled_federation()
    states, _ = run_rounds(algorithm(beta=0), federation)
    wanted, _ = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server", 0)


def test_the_term_ignores_the_true_class():
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(size=(2, 5, 4)) * 3
    labels = np.array([0, 3, 1, 1, 2])
    losses, back = jax.vjp(lambda z: not_true_distillation(teacher, z, labels, 0.5), student)
    loss, slope = fedntd.distillation(teacher, student, labels, 0.5)
    np.testing.assert_allclose(jnp.mean(losses), loss, 1e-12)
    found = back(jnp.full(5, 0.2))[0]
    np.testing.assert_allclose(found, slope, 1e-12, 1e-15)
    assert not found[np.arange(5), labels].any()
    two = not_true_distillation(teacher[:, :2], student[:, :2], labels % 2, 0.5)
    np.testing.assert_array_equal(two, 0)  # one class is left


@pytest.mark.thorough
def test_with_private_leaves_the_teacher_is_the_model_that_a_client_received():
    """It has the client's own biases. Its term has no slope at the model itself."""
    options = {"share": lambda path: "kernel" in path, "batch_size": 6, "local_steps": 1}
    federation = toy_federation((6, 6), (3, 3), model=TanhNetwork(), **options)
    ours, plain = (
        states_of(one, federation, 2)[-1] for one in (algorithm(), pfl.make_algorithm("fedavg"))
    )
    assert_close(ours.private, plain.private, "own leaves")
    assert_close(ours.server, plain.server, "server")


def test_more_forward_passes_than_can_be_counted_are_refused():
    options = {"local_steps": 30_000_000, "batch_size": 80}
    federation = toy_federation((80, 1), (3, 3), **options)
    with pytest.raises(pfl.InputError, match="fedntd would take 2,400,000,000 forward passes"):
        pfl.Simulation(algorithm(), federation).check()
