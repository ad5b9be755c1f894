"""Features and their sums by class against NumPy: second moments, members, one model, counts."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.round_observer import RoundObserver
from fedjax_pfl.testing.toys import TRAIN_SIZES, TanhNetwork, toy_federation
from fedjax_pfl.training import ClassSums
from fedjax_pfl.utils import trees
from tests.references import network

CLASSES, WIDTH = 3, 5
MEMBERS = np.array([True, False, True, True, True])


pytestmark = pytest.mark.usefixtures("double_precision")


def context(federation):
    ctx = pfl.Context(federation, jax.random.key(3), jnp.int32(0), jnp.int32(2), None)
    return replace(ctx, cohort=ctx.cohort_of())


def wanted(model, federation, i, second):
    """(totals, counts, second moments) of client i's training samples, added one by one."""
    data, part = federation.data, federation.data.train
    at = np.asarray(part.index)[int(part.offset[i]) :][: int(part.size[i])]
    totals, counts = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES, int)
    shapes = {"trace": (CLASSES,), "scatter": (CLASSES, WIDTH, WIDTH), "pooled": (WIDTH, WIDTH)}
    moments = np.zeros(shapes[second])
    for k in at:
        z = network.features(model, np.asarray(data.samples, np.float64)[k][None])[0]
        c = int(data.labels[k])
        totals[c] += z
        counts[c] += 1
        if second == "trace":
            moments[c] += z @ z
        else:
            (moments if second == "pooled" else moments[c])[...] += np.outer(z, z)
    return totals, counts, moments


@pytest.mark.costly
@pytest.mark.parametrize("second", ["scatter", "trace", "pooled"])
def test_sums_of_every_members_own_model(second):
    federation = toy_federation(model=TanhNetwork(), validation_size=0, drop_last=True)

    @jax.jit
    def run(federation):
        ctx = replace(context(federation), observer=RoundObserver())
        models = ctx.replicate(ctx.initial_model())
        scale = 1 + jnp.arange(5.0)
        models = jax.tree.map(lambda leaf: leaf * trees.expand_to(leaf, scale), models)
        cohort = ctx.cohort.masked(jnp.asarray(MEMBERS))
        return models, *ctx.class_sums(models, cohort, second), ctx.observer.forward_samples

    models, sums, cohort, passes = jax.device_get(run(federation))
    np.testing.assert_array_equal(cohort.mask, MEMBERS)
    np.testing.assert_array_equal(passes, TRAIN_SIZES * MEMBERS)
    for i in range(5):
        model = jax.tree.map(lambda leaf, i=i: leaf[i], models["params"])
        known = wanted(model, federation, i, second)
        for found, value in zip((sums.totals, sums.counts, sums.second), known, strict=True):
            np.testing.assert_allclose(found[i], value * MEMBERS[i], 1e-12, 1e-12)
    means = sums.totals / np.maximum(sums.counts, 1)[..., None]
    np.testing.assert_allclose(jnp.asarray(sums.means), means, 1e-15)


def test_one_model_for_some_clients_and_one_that_overflows():
    """As `models` calls it, for rows; without augmentation, and nothing is counted."""
    bad = 3
    federation = toy_federation(
        model=TanhNetwork(),
        validation_size=0,
        diverging=bad,
        augment=lambda key, images: images + 1,
    )

    @jax.jit
    def run(federation):
        ctx = context(federation)
        model = ctx.initial_model()
        rows = jnp.array([0, bad, 4])
        return model["params"], *ctx.class_sums(pfl.Broadcast(model), ctx.cohort_of(rows))

    model, sums, cohort = jax.device_get(run(federation))
    assert cohort.mask.tolist() == [True, False, True]
    assert sums.second is None and not sums.totals[1].any() and not sums.counts[1].any()
    for m, i in ((0, 0), (2, 4)):
        totals, counts, _ = wanted(model, federation, i, "trace")
        np.testing.assert_allclose(sums.totals[m], totals, 1e-12, 1e-12)
        np.testing.assert_array_equal(sums.counts[m], counts)


@pytest.mark.costly
def test_features_of_every_members_own_model_and_of_one():
    """In the order of the split, without augmentation, in minibatches that do not divide n."""
    federation = toy_federation(
        model=TanhNetwork(), validation_size=0, batch_order="poisson", drop_last=False,
        augment=lambda key, images: images + 1,
    )  # fmt: skip

    @jax.jit
    def run(federation):
        ctx = replace(context(federation), observer=RoundObserver())
        models = ctx.replicate(ctx.initial_model())
        scale = 1 + jnp.arange(5.0)
        models = jax.tree.map(lambda leaf: leaf * trees.expand_to(leaf, scale), models)
        cohort = ctx.cohort.masked(jnp.asarray(MEMBERS))
        own, after = ctx.sample_features(models, cohort)
        passes = ctx.observer.forward_samples
        model = ctx.initial_model()
        one, _ = ctx.sample_features(pfl.Broadcast(model), ctx.cohort_of(jnp.array([3, 0])))
        sums, _ = ctx.sample_features(models, cohort, then=lambda seen: jnp.sum(seen.features, 0))
        return models["params"], own, after.mask, passes, one, sums

    models, own, mask, passes, one, sums = jax.device_get(run(federation))
    np.testing.assert_allclose(sums, own.features.sum(axis=1), 1e-12)
    np.testing.assert_array_equal(mask, MEMBERS)
    np.testing.assert_array_equal(passes, TRAIN_SIZES * MEMBERS)
    data, part = federation.data, federation.data.train
    assert own.features.shape == (5, max(TRAIN_SIZES), WIDTH)
    first = jax.tree.map(lambda leaf: leaf[0], models)
    rows = [(own, i, i, jax.tree.map(lambda leaf, i=i: leaf[i], models)) for i in range(5)]
    for known, m, i, model in (*rows, (one, 0, 3, first), (one, 1, 0, first)):
        count = int(part.size[i]) * (known is one or MEMBERS[i])
        at = np.asarray(part.index)[int(part.offset[i]) :][:count]
        z = network.features(model, np.asarray(data.samples, np.float64)[at])
        np.testing.assert_array_equal(known.valid[m], np.arange(max(TRAIN_SIZES)) < count)
        np.testing.assert_allclose(known.features[m, :count], z, 1e-12, 1e-12)
        np.testing.assert_array_equal(known.labels[m, :count], data.labels[at])
        assert not known.features[m, count:].any() and not known.labels[m, count:].any()


@pytest.mark.parametrize("second", ["none", "trace", "scatter", "pooled"])
def test_sums_over_nothing_have_the_shapes_of_sums(second):
    half = jax.ShapeDtypeStruct((4, WIDTH), "bfloat16")
    batch = pfl.training.Batch(half, jnp.zeros(4, int), jnp.ones(4, bool))
    of = jax.eval_shape(lambda z: ClassSums.of(batch, z, CLASSES, second), half)
    none = jax.eval_shape(lambda: ClassSums.zeros(CLASSES, WIDTH, "bfloat16", second))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), of) == jax.tree.map(
        lambda x: (x.shape, x.dtype), none
    )
    assert of.totals.dtype == "float32"
