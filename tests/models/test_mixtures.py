"""A pair of models as one: its logits are mixed, everything else is the network's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.aggregation.pairs import Pair, blend, parts
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.models.mixtures import mixture
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.models.task import EVALUATION, FunctionTask, as_task
from tests.models.norm_net import NormNet

X = jax.random.normal(jax.random.key(0), (5, 4))
BATCH = Batch(X, jnp.arange(5) % 3, jnp.ones(5, bool))


@pytest.fixture(scope="module")
def pair():
    task = as_task(NormNet())
    own, shared = (task.initial_model(jax.random.key(k), X) for k in (1, 2))
    return Pair(own, shared, jnp.float32(0.3))


@pytest.mark.costly
@pytest.mark.parametrize("compute_dtype", [None, "bfloat16"])
def test_logits_are_mixed(pair, compute_dtype):
    network = as_task(NormNet())
    object.__setattr__(network, "compute_dtype", compute_dtype)
    task = mixture(network)
    one, other = (network.predict(model, X) for model in (pair.own, pair.shared))
    mixed = task.predict(pair.model(), X)
    assert mixed.dtype == jnp.float32
    np.testing.assert_allclose(mixed, 0.3 * one + 0.7 * other, 1e-6)
    np.testing.assert_array_equal(task.predict(pair.own, X), one)


@pytest.mark.costly
def test_statistics_stay_apart(pair):
    task = mixture(as_task(NormNet()))
    after = parts(task.forward(pair.model(), BATCH).model)
    for model, was in ((after.own, pair.own), (after.shared, pair.shared)):
        alone = task.forward(was, BATCH).model
        jax.tree.map(np.testing.assert_array_equal, model, alone)
        assert not np.array_equal(*(m["batch_stats"]["bn"]["mean"] for m in (model, was)))
    assert after.alpha == pair.alpha


def test_parts_and_initial_models(pair):
    jax.tree.map(np.testing.assert_array_equal, parts(pair.model()), pair)
    task = mixture(as_task(NormNet()))
    first = task.initial_model(jax.random.key(1), X)
    jax.tree.map(np.testing.assert_array_equal, first, pair.own)


def test_a_network_keeps_its_features_and_its_head():
    task = mixture(as_task(MLP(3, (5,))))
    model = task.initial_model(jax.random.key(1), X)
    features, _ = task.embed(model, X, *EVALUATION)
    np.testing.assert_array_equal(task.features(model, X), features)
    np.testing.assert_allclose(task.classify(model, features), task.predict(model, X), 1e-6)


def test_parameters_need_no_names():
    network = FunctionTask(lambda key, x: [jnp.ones((4, 3))], lambda params, x: x @ params[0])
    logits = mixture(network).predict({"params": [jnp.ones((4, 3))]}, X)
    np.testing.assert_allclose(logits[:, 0], X.sum(1), 1e-5)


def test_blend_keeps_counters():
    own, shared = ({"w": jnp.ones(2) * k, "count": jnp.int32(k)} for k in (1, 3))
    mixed = blend(own, shared, 0.25)
    np.testing.assert_allclose(mixed["w"], 2.5)
    assert mixed["count"] == 1 and mixed["count"].dtype == jnp.int32
