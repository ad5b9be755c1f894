"""FedKD against its reference, its factors, and its limits."""

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.common.low_rank import leading, low_rank
from fedjax_pfl.algorithms.fedkd import Mentor
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_models, assert_steps, over
from tests.algorithms.newcomers import personalized
from tests.references import fedkd

VARIANTS = {
    "defaults": {},
    "compressed": {"first_energy": 0.5, "last_energy": 0.99, "weighting": "size"},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedkd", settings)


@over(PATTERNS, [("partial-map", "compressed"), ("full-vmap", "defaults")], VARIANTS)
def test_reference(pattern, variant):
    settings, case = VARIANTS[variant], Case(**PATTERNS[pattern])
    states, records = case.run_rounds(algorithm(**settings))
    first = np.asarray(states[0].own.transform)[0]
    common = case.common(transform=first)
    wanted = fedkd.run(case.initial(), case.clients(), 3, **common, **settings)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.own.model, models["personalized"], "personalized")
        np.testing.assert_allclose(state.own.transform, models["transforms"], 1e-9)
        case.assert_two_models(record, models)
        assert_steps(record, case.cohorts[t], *[common["batches"][t]] * 2)
        np.testing.assert_array_equal(record["clients"]["numbers_up"], models["up"])
        np.testing.assert_array_equal(record["clients"]["numbers_down"], models["down"])
        assert not record["up"].any()
        np.testing.assert_array_equal(record["down"], np.repeat(models["copies"], 2).reshape(-1, 2))


@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_the_leading_part_is_that_of_the_singular_values(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    squares = np.linalg.svd(matrix, compute_uv=False) ** 2
    shares = np.cumsum(squares) / squares.sum()
    for energy, k in ((shares[1] - 1e-9, 2), (shares[1] + 1e-9, 3), (1e-9, 1), (1.0, 4)):
        part, rank = leading(1e3 * matrix, energy)
        assert rank == k
        change, _ = fedkd.factored({"a": {"b": matrix}}, energy)
        np.testing.assert_allclose(part, 1e3 * change["a"]["b"], atol=1e-9)


def test_an_energy_of_one_keeps_what_rounds_off():
    matrix = jnp.diag(jnp.array([1.0, 1e-9, 0.0]))
    assert leading(matrix, 1 - 1e-12)[1] == 1
    part, rank = leading(matrix, 1.0)
    assert rank == 3
    np.testing.assert_allclose(part, matrix, atol=1e-15)


@pytest.mark.thorough
def test_small_zero_and_non_finite_changes():
    matrix = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    wanted, rank = leading(matrix, 0.9)
    tiny, same = leading(1e-30 * matrix, 0.9)  # whose squares underflow
    np.testing.assert_allclose(1e30 * tiny, wanted, 1e-5)
    assert rank == same < 3
    part, rank = leading(jnp.zeros((4, 3)), 0.9)
    assert rank == 0 and not part.any()
    broken = jnp.where(jnp.arange(3) == 1, jnp.nan, matrix)
    part, rank = leading(broken, 0.9)
    np.testing.assert_array_equal(part, broken)
    assert rank == 3


@pytest.mark.thorough
def test_a_factored_change_never_takes_more_than_its_matrix():
    old = {"kernel": jnp.zeros((2, 3, 4, 5)), "bias": jnp.zeros((5,)), "row": jnp.zeros((1, 6))}
    new = {
        name: jnp.asarray(np.random.default_rng(1).normal(size=leaf.shape))
        for name, leaf in old.items()
    }
    for energy, numbers in ((1e-6, 24 + 5 + 1), (1.0, 24 * 5)):
        after, count = low_rank(new, old, energy)
        assert count == numbers + 5 + 6
        assert after["kernel"].shape == (2, 3, 4, 5)
    assert_close(after, new, "everything")


@pytest.mark.thorough
def test_clients_that_diverge_or_are_late():
    """They keep mentor and map, and late ones send nothing."""
    options = {"validation_size": 0, "diverging": 3, "stragglers": {1: 1}}
    federation = toy_federation(dtype="float32", **options)
    (before, after), (record,) = run_rounds(algorithm(), federation, 1)
    for part in (lambda own: own.model["params"]["head"]["bias"], lambda own: own.transform[:, 0]):
        moved = np.not_equal(part(before.own), part(after.own)).any(axis=1)
        np.testing.assert_array_equal(moved, [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(after.last_round, [0, -2, 0, -2, 0])
    np.testing.assert_array_equal(record["clients"]["numbers_up"] > 0, [1, 0, 1, 1, 1])
    np.testing.assert_array_equal(record["down"][:, 0], [1, 0, 1, 1, 1])
    assert np.isfinite(after.server["params"]["head"]["bias"]).all()


@pytest.mark.thorough
def test_private_layers_of_the_mentee_stay_with_members():
    federation = toy_federation(validation_size=0, share="body", participation=0.6)
    (before, after), (record,) = run_rounds(algorithm(), federation, 1)
    heads = (state.private["params"]["head"]["bias"] for state in (before, after))
    moved = np.not_equal(*heads).any(axis=1)
    np.testing.assert_array_equal(moved, record["clients"]["numbers_up"] > 0)
    assert moved.sum() == 3


@pytest.mark.thorough
def test_new_clients_train_both_from_the_servers_model():
    case = Case(1, scored=False)
    start, (batches,) = case.initial("server"), case.batches("personalize")
    transforms = np.random.default_rng(0).normal(size=(case.num_clients, 5, 5))
    wanted = []
    for i in range(case.num_clients):
        models = start, transforms.mean(axis=0), start
        for batch in batches[i]:
            models = fedkd.step(*models, case.x[batch], case.y[batch], case.rates[0])
        wanted.append(models[0])
    made = personalized(algorithm(), case, own=Mentor(None, transforms))
    assert_models(made, wanted, "new clients")
