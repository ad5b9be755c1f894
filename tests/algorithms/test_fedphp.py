"""FedPHP against its reference, and its inheritance."""

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import PATTERNS, maker
from tests.references import fedphp

algorithm = maker("fedphp")


def assert_forward_samples(now):
    frozen = 4 * now.clients["local_steps"]  # one network, minibatches of 4
    np.testing.assert_array_equal(now.clients["forward_samples"], frozen)


def assert_last_state(one):
    case, last = one.case, one.states[-1]
    taken = [sum(i in cohort for cohort in case.cohorts) for i in range(case.num_clients)]
    np.testing.assert_array_equal(last.rounds, taken)
    assert_close(one.algorithm.new_client_start(None, last), last.server, "of new clients", 0)


test_reference, test_contract = comparison(
    "fedphp",
    fedphp.run,
    variants={
        "mmd": {"weight": 0.4},
        "distillation": {"weight": 0.6, "regularizer": "distillation", "inheritance": 0.5},
    },
    given=lambda one: {"ratio": PATTERNS[one.pattern].get("participation", 1.0)},
    states={"server": "global", "own": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
    check=assert_forward_samples,
    finish=assert_last_state,
)


def test_remark_on_weight_one():
    federation = toy_federation(participation=0.6)
    plain, alone = (algorithm(weight=w).remarks(federation) for w in (0.5, 1))
    assert alone == [*plain, "weight is 1: trained without labels"]


def test_inheritance_grows_over_the_usual_number_of_rounds():
    federation = toy_federation(participation=0.6)
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(4), None)
    kept = algorithm().kept(ctx, jnp.arange(4))  # K = int(0.6 * 4) = 2
    np.testing.assert_allclose(kept, [0, 0.45, 0.9, 0.9], 1e-12)
