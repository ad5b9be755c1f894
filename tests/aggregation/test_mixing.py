"""Mixing matrices: the specification's vectors, absent senders, extreme numbers, application."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedjax_pfl import InputError, mixing, similarity
from fedjax_pfl.aggregation.leaf_plan_of_model import leaf_plan
from tests.references.simplex import smallest_quadratic

ALL = np.ones(3, bool)


def close(actual, wanted, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(actual), wanted, tolerance, tolerance)


def test_inverse_distance_vector_and_top_k():
    weights = mixing.inverse(jnp.array([[1.0, 2.0, 4.0]]), ALL)
    close(weights, [[4 / 7, 2 / 7, 1 / 7]])
    close(mixing.keep_top_k(weights, 2), [[2 / 3, 1 / 3, 0]])


def test_softmax_vector():
    close(mixing.softmax(jnp.array([[1.0, 0.5, -0.2]]), ALL), [[0.5242, 0.3179, 0.1579]], 5e-5)


def test_softmax_of_absent_senders_large_scores_and_temperature():
    scores = jnp.array([[1000.0, 999.0, -1000.0]])
    close(mixing.softmax(scores, ALL), [[0.7310586, 0.2689414, 0]])
    close(mixing.softmax(scores, np.array([False, True, False])), [[0, 1, 0]])
    close(mixing.softmax(scores, np.zeros(3, bool)), [[0, 0, 0]])
    close(mixing.softmax(scores, ALL, temperature=1e9), [[1 / 3, 1 / 3, 1 / 3]], 1e-5)


def test_by_size():
    sizes = jnp.array([3, 5, 2])
    close(mixing.by_size(sizes, ALL), [0.3, 0.5, 0.2])
    close(mixing.by_size(sizes, np.array([True, False, True])), [0.6, 0, 0.4])
    close(mixing.by_size(sizes, np.zeros(3, bool)), [0, 0, 0])
    close(mixing.by_size(jnp.zeros(3, jnp.int32), ALL), [0, 0, 0])


def test_normalize_leaves_rows_of_zeros():
    scores = jnp.array([[1.0, 3.0], [0.0, 0.0]])
    close(mixing.normalize(scores), [[0.25, 0.75], [0, 0]])
    close(mixing.normalize(scores, np.array([False, True])), [[0, 1], [0, 0]])


def test_top_k_ties_go_to_the_lower_index():
    equal = jnp.full((1, 4), 0.25)
    close(mixing.keep_top_k(equal, 1), [[1, 0, 0, 0]])
    close(mixing.keep_top_k(equal, 3), [[1 / 3, 1 / 3, 1 / 3, 0]])
    close(mixing.keep_top_k(jnp.array([[0.2, 0.4, 0.4]]), 1), [[0, 1, 0]])


def test_top_k_may_be_traced_and_larger_than_the_row():
    keep = jax.jit(mixing.keep_top_k)
    weights = jnp.array([[0.1, 0.6, 0.3]])
    close(keep(weights, 1), [[0, 1, 0]])
    close(keep(weights, 2), [[0, 2 / 3, 1 / 3]])
    close(keep(weights, 7), [[0.1, 0.6, 0.3]])


def test_inverse_of_absent_senders():
    distances = jnp.array([[1.0, 2.0, 4.0]])
    close(mixing.inverse(distances, np.array([False, True, True])), [[0, 2 / 3, 1 / 3]])
    close(mixing.inverse(distances, np.zeros(3, bool)), [[0, 0, 0]])


def test_inverse_of_zero_distances():
    numbers = np.array([[0.0, 1.0, 2.0]])  # float64, whose tiny numbers are 0 in float32
    close(mixing.inverse(numbers, ALL), [[1, 0, 0]])
    close(mixing.inverse(jnp.zeros((1, 3)), ALL, 1e-6), [[1 / 3, 1 / 3, 1 / 3]])
    close(mixing.inverse(jnp.zeros((1, 3)), ALL), [[1 / 3, 1 / 3, 1 / 3]])
    close(mixing.inverse(jnp.array([[0.0, 1e-6, 2e-6]]), ALL, 1e-6), [[0.4, 0.4, 0.2]])
    close(mixing.inverse(jnp.array([[0.0, 1.0, 2.0]]), ALL), [[1, 0, 0]])


@pytest.mark.parametrize("scale", [1.2e-38, 1e-30, 1e30, 8e37])
def test_inverse_of_tiny_and_huge_distances_in_float32(scale):
    close(mixing.inverse(jnp.float32(scale) * jnp.array([[1.0, 2.0, 4.0]]), ALL),
          [[4 / 7, 2 / 7, 1 / 7]])  # fmt: skip


def test_inverse_of_distances_that_overflowed():
    close(mixing.inverse(jnp.array([[1.0, np.inf, 3.0]]), ALL), [[0.75, 0, 0.25]])
    close(mixing.inverse(jnp.full((1, 3), np.inf), ALL), [[0, 0, 0]])


def test_ratio():
    part, whole = jnp.array([3.0, 0.0, 5.0]), jnp.array([2.0, 0.0, 0.0])
    close(mixing.ratio(part, whole), [1.5, 0, 0])
    slopes = jax.grad(lambda w: jnp.sum(mixing.ratio(part, w)))(whole)
    close(slopes, [-0.75, 0, 0])


@settings(max_examples=30, deadline=None)
@given(
    arrays(np.float32, (3, 5), elements=st.floats(0, 2.0**100, width=32)),
    arrays(bool, 5),
    st.integers(1, 6),
)
def test_rows_are_on_the_simplex_of_the_present(scores, senders, k):
    for weights in (mixing.inverse(scores, senders), mixing.softmax(scores, senders)):
        kept = np.asarray(mixing.keep_top_k(weights, k))
        assert (kept >= 0).all() and not kept[:, ~senders].any()
        assert ((kept > 0).sum(1) <= k).all()
        close(kept.sum(1), np.full(3, senders.any(), float), 1e-5)


@jax.jit
def moved_weights(guide, trained, shift, scale):
    """Inverse distances of models that all moved alike."""
    guide, trained = (scale * (side + shift) for side in (guide, trained))
    distances = similarity.squared_distances({"w": guide}, {"w": trained})
    return mixing.inverse(distances, np.ones(4, bool))


@settings(max_examples=20, deadline=None)
@given(st.floats(-10, 10), st.floats(0.01, 100))
def test_inverse_weights_ignore_translation_and_scaling(shift, scale):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        trained = rng.normal(size=(4, 7))
        guide = trained + 0.1 * rng.normal(size=(4, 7))
        wanted = moved_weights(guide, trained, 0.0, 1.0)
        close(moved_weights(guide, trained, shift, scale), wanted, 1e-9)


@partial(jax.jit, static_argnums=0)
def gradient(fn, scores, *args):
    return jax.grad(lambda x: (fn(x, *args) * jnp.arange(3.0)).sum())(scores)


@pytest.mark.parametrize("senders", [(True,) * 3, (True, False, True), (False,) * 3])
def test_gradients_are_finite(senders):
    senders = np.array(senders)
    scores = jnp.array([[0.0, 0.0, 1.0], [1.0, 1e-30, 1e30]])
    assert np.isfinite(gradient(mixing.inverse, scores, senders, 1e-6)).all()
    assert np.isfinite(gradient(mixing.softmax, scores, senders)).all()
    assert np.isfinite(gradient(mixing.normalize, jnp.zeros((1, 3)), senders)).all()


def test_gradient_of_inverse_distances_is_right():
    slope = gradient(mixing.inverse, jnp.array([[1.0, 2.0, 4.0]]), ALL)
    # weights (4, 2, 1) / 7; d(w_1 + 2 w_2) / d(d_0) = w_0 (w_1 + 2 w_2) / d_0, and so on.
    close(slope, [[16 / 49, -3 / 49, -5 / 98]])
    at_zero = gradient(mixing.inverse, jnp.array([[0.0, 0.0, 1.0]]), ALL)  # without a floor
    assert np.isfinite(at_zero).all()


def stack(count, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "params": {
            "body": {"kernel": jnp.asarray(rng.normal(size=(count, 2, 3)), jnp.float32)},
            "head": {"bias": jnp.asarray(rng.normal(size=(count, 3)), jnp.float32)},
        },
        "seen": {"body": {"count": jnp.arange(count) + 10 * seed}},
    }


def plan_of(models, **options):
    return leaf_plan(jax.tree.map(lambda leaf: leaf[0], models), **options)


def test_apply_is_a_matrix_product():
    senders, onto = stack(3), stack(3, 1)
    weights = np.array([[0.5, 0.5, 0], [0, 0, 1], [0.2, 0.3, 0.5]], np.float32)
    mixed = mixing.apply(jnp.asarray(weights), senders, onto, plan_of(senders))
    kernel = np.asarray(senders["params"]["body"]["kernel"])
    close(mixed["params"]["body"]["kernel"], np.einsum("ij,jkl->ikl", weights, kernel))
    close(mixed["params"]["head"]["bias"], weights @ senders["params"]["head"]["bias"])


@pytest.mark.parametrize("columns", [1, 2, 3, 6, 8])
def test_block_by_block_is_the_same_product(columns, monkeypatch):
    """Blocks that divide the columns, leave a rest, or are wider than all of them."""
    monkeypatch.setattr(mixing, "BLOCK", 3 * columns)
    senders, onto = stack(3), stack(2, 1)
    for models in (senders, onto):  # seven columns: blocks of two or three leave a rest
        count = len(models["seen"]["body"]["count"])
        models["params"]["body"]["wide"] = jnp.arange(7.0 * count).reshape(count, 7)
    weights = jnp.array([[0.5, 0.5, 0], [0.2, 0.3, 0.5]])
    plan = plan_of(senders)

    @jax.jit
    def both(*models):
        return [mixing.apply(weights, *models, plan, blockwise=block) for block in (True, False)]

    jax.tree.map(close, *both(senders, onto))


def test_apply_keeps_rows_without_weight_and_integer_leaves():
    senders, onto = stack(3), stack(3, 1)
    weights = jnp.array([[0, 0, 0], [1.0, 0, 0], [0, 0, 0]])
    plan = plan_of(senders, batch_norm="shared")
    assert all(plan.shared)
    mixed = mixing.apply(weights, senders, onto, plan)
    bias = mixed["params"]["head"]["bias"]
    np.testing.assert_array_equal(bias[0], onto["params"]["head"]["bias"][0])
    np.testing.assert_array_equal(bias[1], senders["params"]["head"]["bias"][0])
    np.testing.assert_array_equal(mixed["seen"]["body"]["count"], onto["seen"]["body"]["count"])


def test_apply_rectangular_from_all_to_few():
    senders, onto = stack(3), stack(2, 1)
    mixed = mixing.apply(jnp.array([[0, 1.0, 0], [0.5, 0, 0.5]]), senders, onto, plan_of(senders))
    bias = np.asarray(senders["params"]["head"]["bias"])
    close(mixed["params"]["head"]["bias"], [bias[1], (bias[0] + bias[2]) / 2])
    assert mixed["params"]["body"]["kernel"].shape == (2, 2, 3)


def test_apply_private_leaves_are_kept():
    senders, onto = stack(3), stack(3, 1)
    plan = plan_of(senders, share="body")
    mixed = mixing.apply(jnp.full((3, 3), 1 / 3), senders, onto, plan)
    np.testing.assert_array_equal(mixed["params"]["head"]["bias"], onto["params"]["head"]["bias"])
    kernel = senders["params"]["body"]["kernel"].mean(0)
    close(mixed["params"]["body"]["kernel"], np.stack([kernel] * 3))


def test_apply_one_matrix_for_each_block():
    senders, onto = stack(3), stack(3, 1)
    plan = plan_of(senders)
    assert plan.blocks == ("body", "head")
    swap = np.eye(3)[[1, 0, 2]]
    mixed = mixing.apply(jnp.asarray(np.stack([swap, np.eye(3)])), senders, onto, plan)
    close(
        mixed["params"]["body"]["kernel"], senders["params"]["body"]["kernel"][jnp.array([1, 0, 2])]
    )
    close(mixed["params"]["head"]["bias"], senders["params"]["head"]["bias"])


def test_weighted_sum():
    senders = stack(3)
    onto = jax.tree.map(lambda leaf: leaf[0], stack(1, 1))
    bias = np.asarray(senders["params"]["head"]["bias"])
    model = mixing.weighted_sum(jnp.array([0.25, 0, 0.75]), senders, onto)
    close(model["params"]["head"]["bias"], 0.25 * bias[0] + 0.75 * bias[2])
    assert model["seen"]["body"]["count"] == onto["seen"]["body"]["count"]
    nobody = mixing.weighted_sum(jnp.zeros(3), senders, onto)
    np.testing.assert_array_equal(nobody["params"]["head"]["bias"], onto["params"]["head"]["bias"])


def test_check():
    mixing.check(np.array([[0.5, 0.5], [0, 1]]))
    with pytest.raises(InputError, match="non-negative, got"):
        mixing.check(np.array([[1.5, -0.5]]))
    with pytest.raises(InputError, match=r"must be one.*got 0\.4"):
        mixing.check(np.array([[0.5, 0.5], [0.2, 0.2]]))
    with pytest.raises(InputError):
        mixing.check(np.array([[np.nan, 1.0]]))


@pytest.mark.parametrize("low", [jnp.float16, jnp.bfloat16])
def test_rows_of_half_precision(low):
    """Rows of 1/3 sum to one in their own type only; computed weights and products have more."""
    thirds = jnp.full((3, 3), 1 / 3, low)
    with pytest.raises(InputError, match=r"mixing matrix must be one .* belongs in the state"):
        mixing.check(thirds)
    assert mixing.normalize(thirds).dtype == jnp.float32
    models = stack(3)
    with pytest.raises(TypeError, match=f"Weights of {thirds.dtype} do not sum to one"):
        mixing.apply(thirds, models, models, plan_of(models))
    with pytest.raises(TypeError, match=f"Weights of {thirds.dtype} do not sum to one"):
        mixing.combine(thirds[0], jnp.ones((3, 2)))
    mean = mixing.combine(jnp.full(3, 1 / 3), jnp.full((3, 2), 257, low))
    assert mean.dtype == low and (mean == jnp.asarray(257, low)).all()


def masked_reference(weights, leaf, mask):
    """Float64 loops over clients and elements."""
    out = leaf.astype(float).copy()
    for at in np.ndindex(leaf.shape[1:]):
        top = bottom = 0.0
        for j, weight in enumerate(weights):
            if mask[(j, *at)] and weight > 0:
                top += weight * float(leaf[(j, *at)])
                bottom += weight
        for i in range(len(leaf)):
            if mask[(i, *at)] and bottom > 0:
                out[(i, *at)] = top / bottom
    return out


@jax.jit
def masked(weights, models, masks):
    return mixing.masked_average(weights, models, masks)


def masked_case():
    rng = np.random.default_rng(0)
    models = {
        "w": rng.normal(size=(4, 3, 2)).astype(np.float32),
        "steps": np.arange(4, dtype=np.int32),
    }
    masks = {"w": rng.random((4, 3, 2)) < 0.6, "steps": np.ones(4, bool)}
    masks["w"][:, 0, 0] = False  # nobody shares it
    masks["w"][:, 1, 1] = [True, False, False, False]  # only one of weight 0 shares it
    return np.array([0, 3, 5, 2], np.float32), models, masks


def test_masked_average_is_its_reference_and_leaves_out_non_finite_models():
    weights, models, masks = masked_case()
    models["w"][0, 1:] = np.nan
    masks["w"][0, 2] = True  # it receives what the others share
    found = masked(weights, models, masks)
    close(found["w"], masked_reference(weights, models["w"], masks["w"]))
    assert np.isfinite(found["w"][0, 2]).all()
    np.testing.assert_array_equal(found["steps"], models["steps"])


def test_masked_average_of_all_elements_and_of_none():
    weights, models, masks = masked_case()
    whole = masked(weights, models, jax.tree.map(np.ones_like, masks))["w"]
    mean = mixing.weighted_sum(weights / weights.sum(), models, models)["w"]
    close(whole, np.broadcast_to(mean, whole.shape))
    none = masked(weights, models, jax.tree.map(np.zeros_like, masks))["w"]
    np.testing.assert_array_equal(none, models["w"])
    nobody = masked(0 * weights, models, masks)["w"]
    np.testing.assert_array_equal(nobody, models["w"])


def test_masks_are_broadcast_or_refused():
    weights, models, _ = masked_case()
    of_column = np.array([True, False])
    found = masked(weights, models, {"w": of_column, "steps": False})["w"]
    wanted = np.broadcast_to(of_column, found.shape)
    close(found, masked_reference(weights, models["w"], wanted))
    with pytest.raises(InputError, match=r"Shape of a mask .*\(4, 3, 2\), got \(5,\)"):
        masked(weights, models, {"w": np.ones(5), "steps": True})


simplex_qp = jax.jit(mixing.simplex_qp)


def test_simplex_qp_is_the_best_of_all_supports():
    rng = np.random.default_rng(4)
    factors = rng.normal(size=(6, 5, 3)) * 10.0 ** rng.integers(-3, 4, size=(6, 1, 1))
    every = (
        factors @ factors.transpose(0, 2, 1) + np.eye(5) * np.var(factors, (1, 2))[:, None, None]
    )
    present = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], bool)
    with jax.enable_x64(True):
        whole = simplex_qp(every)
        some = simplex_qp(every[:4], present)
    for found, matrix in zip(whole, every, strict=True):
        close(found, smallest_quadratic(matrix), 1e-9)
    for found, matrix, senders in zip(some, every, present, strict=False):
        wanted = np.zeros(5)
        if senders.any():
            wanted[senders] = smallest_quadratic(matrix[np.ix_(senders, senders)])
        close(found, wanted, 1e-9)


def test_simplex_qp_satisfies_the_optimality_conditions():
    """P a is smallest, and the same, where a is positive."""
    rng = np.random.default_rng(5)
    factors = rng.normal(size=(20, 8))
    matrix = factors @ factors.T + np.diag(rng.uniform(0.01, 2, 20))
    with jax.enable_x64(True):
        found = np.asarray(simplex_qp(matrix))
    slope = matrix @ found
    assert found.min() >= 0 and abs(found.sum() - 1) < 1e-12
    assert 0 < (found == 0).sum() < 20
    gap = found @ slope - slope.min()
    assert abs(gap) < 1e-11 * slope.min()
    close(simplex_qp(np.zeros((4, 4), np.float32)), 4 * [0.25])
    single = simplex_qp(matrix.astype(np.float32))
    assert single.dtype == np.float32
    close(single, found, 1e-3)
