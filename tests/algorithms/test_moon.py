"""MOON against its reference: its term, and what stands for a last model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import trees
from fedjax_pfl.algorithms.moon import contrast
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import local_sgd, moon

algorithm = maker("moon")


def models_of(state, i):
    """Client i's last model."""
    return jax.tree.map(lambda leaf: leaf[i], state.previous["params"])


def check(now):
    for i, previous in enumerate(now.wanted["previous"]):
        assert now.state.took_part[i] == (previous is not None)
        if previous is not None:
            assert_close(models_of(now.state, i), previous, f"last model of {i}")
    frozen = 2 * 4 * now.clients["local_steps"]  # two networks, minibatches of 4
    np.testing.assert_array_equal(now.clients["forward_samples"], frozen)
    now.assert_mean()


def assert_first_rounds_are_plain(one):
    """Also of who first comes later: no random network is its last model, as in the authors' code.

    Those who come again are moved by the term.
    """
    moved = {True: [], False: []}
    for now in one.rounds()[1:]:
        for i in now.cohort:
            received, rate = now.before.server["params"], one.case.rates[now.t]
            plain = local_sgd.sgd(received, now.batches()[i], one.case.x, one.case.y, rate)
            gaps = jax.tree.map(lambda a, b: abs(a - b).max(), models_of(now.state, i), plain)
            moved[bool(now.before.took_part[i])].append(max(jax.tree.leaves(gaps)))
    if one.pattern == "partial-map":
        assert max(moved[False]) < 1e-12 and min(moved[True]) > 1e-4


test_reference, test_contract = comparison(
    "moon",
    moon.run,
    settings={"mu": 3.0, "tau": 0.3},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    check=check,
    finish=assert_first_rounds_are_plain,
)


@pytest.mark.costly
def test_moon_with_private_leaves():
    """A client stays near the model that it received: the server's kernels, its own biases."""
    options = {"share": lambda path: "kernel" in path, "batch_size": 6, "local_steps": 2}
    federation = toy_federation((6, 6), (3, 3), model=TanhNetwork(), **options)
    _, before, after = states_of(algorithm(mu=3.0), federation, 2)
    own, task = federation.data.train.index[:6], federation.task
    samples = federation.data.samples[own].astype(float), federation.data.labels[own]
    batch = pfl.training.Batch(*samples, jnp.ones(6, bool))
    private = jax.tree.map(lambda leaf: leaf[0], before.private["params"])
    received = trees.join(before.server["params"], private)
    near, far = (task.features({"params": p}, samples[0]) for p in (received, models_of(before, 0)))

    def cosine(a, b):
        return jnp.sum(a * b, 1) / jnp.linalg.norm(a, axis=1) / jnp.linalg.norm(b, axis=1)

    def loss(params):
        z = task.features({"params": params}, samples[0])
        pairs = jnp.stack([cosine(z, near), cosine(z, far)]) / 0.5
        term = -jnp.mean(jax.nn.log_softmax(pairs, axis=0)[0])
        return task.loss({"params": params}, batch)[0] + 3.0 * term

    params = received
    for _ in range(2):
        params = jax.tree.map(lambda w, g: w - 0.3 * g, params, jax.grad(loss)(params))
    assert_close(models_of(after, 0), params, "client 0")


@jax.jit
def contrast_and_slope(features, near, far):
    """The losses, and the slope of their mean."""
    losses, back = jax.vjp(lambda z: contrast(z, near, far, 0.5), features)
    return losses, back(jnp.full(4, 0.25))[0]


@pytest.mark.parametrize("zeros", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_contrast_of_features_that_are_zero(zeros):
    """Rows of zeros, as a ReLU network may give them, have cosine and slope zero."""
    result = np.random.default_rng(0).normal(size=(3, 4, 5))
    result[list(zeros), 1] = 0
    losses, back = contrast_and_slope(*result)
    loss, slope = moon.contrast(*result, 0.5)
    np.testing.assert_allclose(jnp.mean(losses), loss, rtol=1e-12)
    np.testing.assert_allclose(back, slope, 1e-12, 1e-15)
    if 0 in zeros:
        assert losses[1] == pytest.approx(np.log(2)) and not slope[1].any()


def contrast_mean(*features):
    return jnp.mean(contrast(*features, 0.5))


def test_contrast_of_large_features_in_half_precision():
    rng = np.random.default_rng(1)
    result = [jnp.asarray(rng.normal(size=(4, 5)) * 200, "float16") for _ in range(3)]
    loss, _ = moon.contrast(*(np.asarray(leaf, float) for leaf in result), 0.5)
    np.testing.assert_allclose(jax.jit(contrast_mean)(*result), loss, 1e-5)
