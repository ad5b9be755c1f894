"""pFedSim against its reference, and its weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.pfedsim import attention, class_cosines
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, assert_models, maker
from tests.references import pfedsim

ROUNDS = 4  # in the third one, similarities first count


algorithm = maker("pfedsim")


def warm_up(one):
    return {"warm": int(ROUNDS * one.settings["warmup_fraction"])}


def check(now):
    joined = np.flatnonzero(now.state.joined)
    kept = [now.wanted["personalized"][i] for i in joined]
    if len(joined):
        own = jax.tree.map(lambda leaf: leaf[joined], now.state.models)
        assert_models(own, kept, "own")
    present, warm = now.present, now.t < now.compared.options["warm"]
    expected = np.eye(now.case.num_clients)
    for i, row in now.wanted["weights"].items():
        expected[i] = expected[i] if row is None else row
    if warm:
        shares = present * now.case.sizes
        expected[present] = shares / shares.sum()
    np.testing.assert_allclose(now.record["matrices"]["mixing"], expected, 1e-9, 1e-12)
    blocks = now.case.federation.plan.blocks
    down = [present if block != "head" else present & warm for block in blocks]
    now.assert_copies(present, np.stack(down, axis=1))


def assert_some_models_are_mixtures(one):
    rows = [row for models in one.wanted for row in models["weights"].values()]
    assert any(row is not None for row in rows) or one.pattern == "single"


test_reference, test_contract = comparison(
    "pfedsim",
    pfedsim.run,
    variants={"quarter": {"warmup_fraction": 0.3}, "none": {"warmup_fraction": 0.0}},
    options={"rounds": ROUNDS},
    ours=("warmup_fraction",),
    given=warm_up,
    states={"server": "global", "similarity": "similarity"},
    scores={"personalized": "personalized"},
    copies=None,
    check=check,
    finish=assert_some_models_are_mixtures,
)


@pytest.mark.costly
def test_downloads_of_diverged_clients():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    _, (record,) = run_rounds(algorithm(), federation, 1)
    np.testing.assert_array_equal(record["down"][:, 0], np.ones(5))


def test_attention():
    """Equal classifiers have a finite weight; without a known pair there is none."""
    known = jnp.asarray([[0.2, 0.5, 0.0, 1.0], [0.3, 0.3, 0.9999, 0.1], [0.0, 0.0, 0.8, 0.0]])
    found = jax.jit(attention)(known, jnp.asarray([0, 1, 2]))
    for i, row in enumerate(np.asarray(known)):
        wanted = pfedsim.weights(row, i)
        np.testing.assert_allclose(found[i], 0 if wanted is None else wanted, 1e-4)
    assert found[0, 0] == found[0, 3] and not found[2].any()


def test_class_cosines_of_opposite_classifiers():
    """They are not similar."""

    @jax.jit
    def cosines(federation):
        ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(1), None)
        both = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), ctx.initial_model())
        return class_cosines(ctx, both)

    np.testing.assert_allclose(cosines(toy_federation()), np.eye(2), atol=1e-12)


@pytest.mark.costly
def test_new_client_start_of_pfedsim():
    case = Case(rounds=3)
    state = case.states_of(algorithm(warmup_fraction=0.4))[-1]
    ctx = pfl.Context(case.federation, case.key, jnp.int32(2), jnp.int32(3), case.cohort(2))
    start = algorithm().new_client_start(ctx, state)
    assert_close(start["params"], state.server["params"], "start", 0)
