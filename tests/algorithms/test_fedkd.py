"""FedKD against its reference, its factors, and its limits."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.algorithms.fedkd import leading, low_rank
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import fedkd

algorithm = maker("fedkd")


def check_copies(now):
    now.assert_copies(0, now.wanted["copies"])


def new_clients(one, made):
    """They train both models from the server's, with the mean of all transforms."""
    start, (batches, (x, y, rate)) = one.wanted[-1]["global"], one.newcomers()
    transform = np.mean(one.wanted[-1]["transforms"], axis=0)
    found = []
    for own in batches:
        models = start, transform, start
        for batch in own:
            models = fedkd.step(*models, x[batch], y[batch], rate)
        found.append(models[0])
    return found


test_reference, test_contract = comparison(
    "fedkd",
    fedkd.run,
    settings={"first_energy": 0.5, "last_energy": 0.99},
    given=lambda one: {"transform": np.asarray(one.states[0].own.transform)[0]},
    states={"server": "global", "own.model": "personalized", "own.transform": "transforms"},
    scores={"global": "global", "personalized": "personalized"},
    clients={"numbers_up": "up", "numbers_down": "down"},
    steps=("batches", "batches"),
    copies=None,
    check=check_copies,
    new_clients=new_clients,
)


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(4, 7), (7, 4)])
def test_leading_part_of_singular_values(shape):
    matrix = np.random.default_rng(0).normal(size=shape)
    squares = np.linalg.svd(matrix, compute_uv=False) ** 2
    shares = np.cumsum(squares) / squares.sum()
    for energy, k in ((shares[1] - 1e-9, 2), (shares[1] + 1e-9, 3), (1e-9, 1), (1.0, 4)):
        part, rank = leading(1e3 * matrix, energy)
        assert rank == k
        change, _ = fedkd.factored({"a": {"b": matrix}}, energy)
        np.testing.assert_allclose(part, 1e3 * change["a"]["b"], atol=1e-9)


@pytest.mark.costly
def test_leading_part_of_small_zero_and_non_finite_changes():
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
    # An energy of one keeps what rounds off.
    matrix = jnp.diag(jnp.array([1.0, 1e-9, 0.0]))
    assert leading(matrix, 1 - 1e-12)[1] == 1
    part, rank = leading(matrix, 1.0)
    assert rank == 3
    np.testing.assert_allclose(part, matrix, atol=1e-15)


@pytest.mark.costly
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


@pytest.mark.costly
def test_private_layers_of_the_mentee_stay_with_members():
    federation = toy_federation(validation_size=0, share="body", participation=0.6)
    (before, after), (record,) = run_rounds(algorithm(), federation, 1)
    heads = (state.private["params"]["head"]["bias"] for state in (before, after))
    moved = np.not_equal(*heads).any(axis=1)
    np.testing.assert_array_equal(moved, record["clients"]["numbers_up"] > 0)
    assert moved.sum() == 3
