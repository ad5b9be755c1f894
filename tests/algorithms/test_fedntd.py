"""FedNTD against its reference, its term, and its teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedntd import not_true_distillation
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import fedntd

algorithm = maker("fedntd")


def check_passes(now):
    frozen = 4 * now.clients["local_steps"]  # one network, minibatches of 4
    np.testing.assert_array_equal(now.clients["forward_samples"], frozen)
    now.assert_mean()


test_reference, test_contract = comparison(
    "fedntd",
    fedntd.run,
    settings={"beta": 1.5, "tau": 0.6},
    variants={"by-size": {}, "uniform": {"weighting": "uniform"}},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    check=check_passes,
)


@pytest.mark.costly
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


@pytest.mark.costly
def test_with_private_leaves_the_teacher_is_the_model_that_a_client_received():
    """It has the client's own biases. Its term has no slope at the model itself."""
    options = {"share": lambda path: "kernel" in path, "batch_size": 6, "local_steps": 1}
    federation = toy_federation((6, 6), (3, 3), model=TanhNetwork(), **options)
    ours, plain = (
        states_of(one, federation, 2)[-1] for one in (algorithm(), pfl.make_algorithm("fedavg"))
    )
    assert_close(ours.private, plain.private, "own leaves")
    assert_close(ours.server, plain.server, "server")
