"""Pairwise measures against float64 NumPy, above all where float32 cancels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import similarity
from fedjax_pfl.execution.mesh import sharing
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.utils.errors import InputError

COUNT = 6
squared_distances = jax.jit(similarity.squared_distances)
cosines = jax.jit(similarity.cosines)


def models(spread, seed=0, far=None):
    """float32 models of norm about 40 that differ by about `spread` of it."""
    rng = np.random.default_rng(seed)
    tree = {}
    for name, shape in (("kernel", (20, 50)), ("bias", (50,)), ("head", (50, 10))):
        centre = rng.normal(size=shape)
        own = spread * rng.normal(size=(COUNT, *shape))
        if far is not None:
            own += far.reshape((-1,) + (1,) * len(shape)) * rng.normal(size=shape)
        tree[name] = jnp.asarray(centre + own, jnp.float32)
    return tree


def rows(tree):
    return np.concatenate(
        [np.asarray(x, np.float64).reshape(len(x), -1) for x in jax.tree.leaves(tree)], axis=1
    )


def exact_distances(a, b):
    return ((rows(a)[:, None] - rows(b)[None]) ** 2).sum(-1)


def off_diagonal_error(a, b):
    off = ~np.eye(COUNT, dtype=bool)
    wanted = exact_distances(a, b)[off]
    return np.abs(np.asarray(squared_distances(a, b))[off] / wanted - 1).max()


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
def test_distances_of_close_models_in_float32(spread):
    assert off_diagonal_error(models(spread), models(spread, 0)) < 1e-5


def test_distances_to_guides_much_nearer_than_the_others():
    trained = models(1e-3)
    rng = np.random.default_rng(1)
    guide = jax.tree.map(lambda x: x + np.float32(1e-5) * rng.normal(size=x.shape).astype("f4"),
                         trained)  # fmt: skip
    wanted = exact_distances(guide, trained)
    own = np.diagonal(squared_distances(guide, trained))
    np.testing.assert_allclose(own, np.diagonal(wanted), 1e-2)  # the shift itself rounds once
    assert off_diagonal_error(guide, trained) < 1e-5


def test_the_diagonal_of_equal_models_is_zero():
    same = models(1e-4)
    assert (np.diagonal(squared_distances(same, same)) == 0).all()


def test_distances_rectangular_and_never_negative():
    trained = models(1e-4)
    some = jax.tree.map(lambda x: x[:2], trained)
    distances = np.asarray(squared_distances(some, trained))
    assert distances.shape == (2, COUNT) and (distances >= 0).all()
    np.testing.assert_allclose(distances[0, 1:], exact_distances(some, trained)[0, 1:], 1e-5)


def test_some_clients_among_all_are_known_by_their_partners():
    """Their own rows, at a distance of 0, would send all pairs the slow way."""
    trained, partners = models(1e-3), np.array([1, 4])
    some = jax.tree.map(lambda x: x[partners], trained)
    known = jax.jit(lambda a, b: similarity.squared_distances(a, b, partners))
    distances, wanted = np.asarray(known(some, trained)), exact_distances(some, trained)
    assert (distances[[0, 1], partners] == 0).all()
    np.testing.assert_allclose(distances, wanted, 1e-5)
    slow = np.asarray(squared_distances(some, trained))  # differs in its last digits
    np.testing.assert_allclose(slow, wanted, 1e-5)
    assert (distances != slow).any()


def test_distances_inside_two_clusters_far_apart():
    far = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    clusters = models(1e-4, far=far)
    assert off_diagonal_error(clusters, clusters) < 1e-2


def test_one_client_far_off_leaves_the_distances_of_the_others():
    far = np.array([0.0, 0.0, 0.0, 1e4, 0.0, 0.0])
    outlier = models(1e-2, far=far)
    assert off_diagonal_error(outlier, outlier) < 1e-2


def test_gram_norms_and_cosines():
    a, b = models(1.0), models(1.0, 1)
    x, y = rows(a), rows(b)
    np.testing.assert_allclose(jax.jit(similarity.gram)(a, b), x @ y.T, 1e-4, 1e-2)
    np.testing.assert_allclose(jax.jit(similarity.squared_norms)(a), (x**2).sum(1), 1e-5)
    one = jax.tree.map(lambda leaf: leaf[2], a)
    np.testing.assert_allclose(jax.jit(similarity.dots)(b, one), y @ x[2], 1e-4, 1e-2)
    lengths = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(y, axis=1)[None]
    np.testing.assert_allclose(cosines(a, b), x @ y.T / lengths, 1e-4, 1e-5)


def test_cosines_are_literal_and_zero_for_zero_vectors():
    a = {"w": jnp.array([[1.0, 0.0], [3.0, 3.0], [0.0, 0.0]])}
    b = {"w": jnp.array([[2.0, 0.0], [0.0, -5.0]])}
    half = 0.5**0.5

    @jax.jit
    @jax.grad
    def slope(w):
        return similarity.cosines({"w": w}, b).sum()

    np.testing.assert_allclose(cosines(a, b), [[1, 0], [half, -half], [0, 0]], 1e-6)
    assert np.isfinite(slope(a["w"])).all()  # of the zero vector too


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_cosines_of_tiny_and_huge_vectors(size):
    vector = {"w": jnp.full((1, 4), size, jnp.float32)}
    np.testing.assert_allclose(cosines(vector, vector), [[1.0]], 1e-5)


@pytest.mark.parametrize("measure", [squared_distances, cosines])
def test_permuted_clients_permute_rows_and_columns(measure):
    a, b = models(0.1), models(0.1, 0)
    order = np.array([4, 0, 5, 2, 1, 3])
    turned = jax.tree.map(lambda x: x[order], (a, b))
    np.testing.assert_allclose(
        measure(*turned), np.asarray(measure(a, b))[np.ix_(order, order)], 1e-4, 1e-4
    )


def test_models_that_share_nothing_are_refused():
    nothing = {"w": None}
    with pytest.raises(InputError, match="without a shared trainable leaf"):
        similarity.squared_distances(nothing, nothing)


@pytest.mark.costly
@pytest.mark.parametrize("block", [6, 303, 2994])
def test_wide_leaves_go_block_by_block(block, monkeypatch):
    """Whatever of the columns remains: leaves of 1000, 50 and 500 of them."""
    monkeypatch.setattr(similarity, "BLOCK", block)

    @jax.jit
    def measured(a, b):
        grams = similarity.gram(a, b), similarity.gram(a, b, centred=True)
        distances = [similarity.squared_distances(a, other) for other in (a, b)]
        return *grams, *distances, similarity.cosines(a, b)

    with jax.enable_x64(True):
        a, b = (jax.tree.map(lambda x: jnp.float64(x), models(0.1, seed=s)) for s in (1, 2))
        b = jax.tree.map(lambda x: x[:4], b)
        gram, centred_gram, among_a, to_b, cosines_to_b = measured(a, b)
        x, y = rows(a), rows(b)
        np.testing.assert_allclose(gram, x @ y.T, rtol=1e-12)
        centred = y - y.mean(axis=0)
        np.testing.assert_allclose(centred_gram, x @ centred.T, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(among_a, exact_distances(a, a), rtol=1e-11)
        np.testing.assert_allclose(to_b, exact_distances(a, b), rtol=1e-11)
        wanted = x @ y.T / np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=1))
        np.testing.assert_allclose(cosines_to_b, wanted, rtol=1e-12)


@pytest.mark.costly
def test_runs_side_by_side_sum_pairs_directly_only_where_one_has_to():
    """Under vmap a condition's branches would both be computed, in every round."""
    rng = np.random.default_rng(5)
    wide = rng.normal(size=(3, 40)).astype(np.float32)
    tight = 1e3 + 1e-3 * wide  # two of them near each other, the third far away
    tight[1] *= -1
    both = {"w": jnp.stack([jnp.asarray(wide), jnp.asarray(tight)])}
    result = jax.vmap(similarity.squared_distances)(both, both)
    for one, rows in zip(result, (wide, tight), strict=True):
        exact = np.sum((rows[:, None].astype(float) - rows[None]) ** 2, axis=2)
        np.testing.assert_allclose(one, exact, rtol=1e-3)
    vmapped = jax.vmap(similarity.squared_distances)
    assert " cond[" in str(jax.make_jaxpr(vmapped)(both, both))


@pytest.mark.parametrize("on_chip", [2**24, 2000])
def test_distances_of_a_round_for_a_tpu(on_chip, monkeypatch):
    """Wide leaves are one block there; what all are measured from is the mean of a few."""
    monkeypatch.setattr(similarity, "ON_CHIP", on_chip)
    monkeypatch.setattr(similarity, "BLOCK", 2000)
    trained, guide = models(1e-3), models(1e-3, 1)
    far = jax.tree.map(lambda x: x.at[1].add(1e3), trained)  # one of the few
    off = ~np.eye(COUNT, dtype=bool)

    def distances(a, b):
        return similarity.squared_distances(a, b)

    with sharing(Execution(0, "map", platform="tpu")):
        for a, b in ((trained, trained), (guide, trained), (guide, far)):
            found, wanted = np.asarray(jax.jit(distances)(a, b)), exact_distances(a, b)
            np.testing.assert_allclose(found[off], wanted[off], 1e-5)
            text = str(jax.make_jaxpr(distances)(a, b)).partition(" cond[")[0]
            assert ("dynamic_slice" in text) == (on_chip == 2000)
            # Of pairs alone: once a leaf, and once more for the blocks of one.
            assert text.count(" dot_general[") == 3 + (on_chip == 2000)
