"""Robust rules equal the vector code of their papers, and tolerate what they promise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.aggregation import robust, similarity
from fedjax_pfl.aggregation.aggregators import AGGREGATORS, Senders
from tests.references import robust as reference

PUBLISHED = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])  # byzfl's worked example


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def vectors(n=11, d=7, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def stacked(x, absent=()):
    """(stack of two leaves with rows of garbage for absent members, mask, Gram matrix)."""
    rows, mask, here = [], [], iter(x)
    for k in range(len(x) + len(absent)):
        mask.append(k not in absent)
        rows.append(next(here) if mask[-1] else np.full(x.shape[1], 50.0))
    full = np.array(rows)
    cut = max(full.shape[1] // 2, 1)
    stack = {"a": jnp.asarray(full[:, :cut]), "b": jnp.asarray(full[:, cut:])}
    mask = jnp.asarray(mask)
    held = jax.tree.map(lambda leaf: jnp.where(mask[:, None], leaf, 0), stack)
    return stack, mask, similarity.gram(held, held)


def total(weights, stack):
    return np.concatenate([weights @ leaf for leaf in jax.tree.leaves(stack)])


def flat(tree):
    return np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(tree)])


def close(ours, theirs, tolerance=1e-10):
    np.testing.assert_allclose(ours, theirs, atol=tolerance)


@pytest.mark.parametrize("absent", [(), (0, 5)])
@pytest.mark.parametrize("f", [1, 2])
def test_rules(f, absent):
    x = vectors()
    stack, mask, gram = stacked(x, absent)
    even = mask / jnp.sum(mask)
    n = len(x)
    close(robust.pairwise_squares(gram)[mask][:, mask], reference.distances(x))
    for neighbours in (1, 2):
        w = robust.krum(gram, mask, f, neighbours=neighbours)
        close(total(w, stack), reference.krum(x, f, neighbours=neighbours))
        w = robust.krum(gram, mask, f, selected=n - f, neighbours=neighbours)
        close(total(w, stack), reference.krum(x, f, n - f, neighbours))
    mean = x.mean(0)
    w = robust.geometric_median(gram, even, steps=4, smoothing=0.1)
    close(total(w, stack), reference.geometric_median(x, np.ones(n) / n, 4, 0.1, mean))
    w = robust.geometric_median(gram, even, steps=4, smoothing=0.1, start_at_mean=False)
    close(total(w, stack), reference.geometric_median(x, np.ones(n) / n, 4, 0.1, 0 * mean))
    for steps in (1, 3):
        w = robust.centred_clipping(gram, even, 1.5, steps)
        close(total(w, stack), reference.centred_clipping(x, np.ones(n) / n, 1.5, steps))
    w = robust.norm_bound(gram, even, 1.5)
    close(total(w, stack), np.mean([reference.clip(v, 1.5) for v in x], axis=0))
    rows = robust.nearest_neighbour_mixing(gram, mask, f)
    mixed = np.array([total(row, stack) for row in rows])
    close(mixed[np.asarray(mask)], reference.nearest_neighbour_mixing(x, f))
    close(flat(robust.coordinate_median(stack, mask)), reference.median(x))
    close(flat(robust.trimmed_mean(stack, mask, f)), reference.trimmed_mean(x, f))
    close(flat(robust.bulyan(gram, stack, mask, f)), reference.bulyan(x, f))


def test_published_example():
    """The values in byzfl's documentation, f = 1."""
    stack, mask, gram = stacked(PUBLISHED)
    even = mask / 3
    close(flat(robust.trimmed_mean(stack, mask, 1)), [4, 5, 6])
    close(total(robust.krum(gram, mask, 1, neighbours=1), stack), [1, 2, 3])
    close(total(robust.krum(gram, mask, 1, selected=2, neighbours=1), stack), [2.5, 3.5, 4.5])
    rows = robust.nearest_neighbour_mixing(gram, mask, 1)
    close([total(row, stack)[0] for row in rows], [2.5, 2.5, 5.5])
    w = robust.geometric_median(gram, even, 3, 0.1, start_at_mean=False)
    close(total(w, stack), [3.7879, 4.7879, 5.7879], 1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_foolsgold_punishes_equal_updates(seed):
    history = vectors(6, 5, seed)
    history[4:] = history[3] + 1e-3 * history[4:]  # three of a kind
    _, mask, gram = stacked(history)
    ours = robust.foolsgold(gram, mask)
    close(ours, reference.foolsgold(history))
    assert np.all(np.asarray(ours[3:]) < 0.05)


def test_fltrust():
    x, root = vectors(6, 5), vectors(1, 5, 9)[0]
    stack, mask, gram = stacked(x)
    w = robust.fltrust(x @ root, jnp.sqrt(jnp.diagonal(gram)), np.linalg.norm(root), mask)
    close(total(w, stack), reference.fltrust(x, root))


def test_self_clip_is_a_mixing_matrix():
    x = vectors(6, 5)
    w = np.random.default_rng(3).dirichlet(np.ones(6), 6)
    radius = np.array([0.5, 1, 2, 3, 1e9, 0])
    _, _, gram = stacked(x)
    matrix = robust.self_clip(jnp.asarray(w), robust.pairwise_squares(gram), jnp.asarray(radius))
    close(matrix @ x, reference.self_clip(w, x, radius))
    close(matrix.sum(1), 1)
    close(matrix[4], w[4])  # a large radius clips nothing
    close(matrix[5], np.eye(6)[5])  # 0 trains locally


def test_rules_without_attackers_are_the_mean():
    x = vectors()
    stack, mask, gram = stacked(x)
    even, mean = mask / len(x), x.mean(0)
    close(total(robust.krum(gram, mask, 0, selected=len(x)), stack), mean)
    close(total(robust.centred_clipping(gram, even, jnp.inf), stack), mean)
    close(total(robust.norm_bound(gram, even, jnp.inf), stack), mean)
    close(total(even @ robust.nearest_neighbour_mixing(gram, mask, 0), stack), mean)
    close(flat(robust.trimmed_mean(stack, mask, 0)), mean)


@pytest.mark.parametrize("bad", [1e12, -1e12])
def test_breakdown(bad):
    """f arbitrary updates keep the result within reach of the honest ones."""
    honest, f = vectors(9), 2
    x = np.concatenate([np.full((f, honest.shape[1]), bad), honest])
    stack, mask, gram = stacked(x)
    results = [
        flat(robust.coordinate_median(stack, mask)),
        flat(robust.trimmed_mean(stack, mask, f)),
        total(robust.krum(gram, mask, f), stack),
        flat(robust.bulyan(gram, stack, mask, f)),
    ]
    for result in results:
        assert np.all(result >= honest.min(0) - 1e-9) and np.all(result <= honest.max(0) + 1e-9)
    # The Weiszfeld iteration only converges towards the honest members.
    w = robust.geometric_median(gram, mask / len(x), steps=60)
    assert np.linalg.norm(total(w, stack) - honest.mean(0)) < 5


def test_buckets():
    x = vectors(7)
    _, mask, _ = stacked(x, absent=(2,))
    matrix = robust.bucketing(jax.random.key(0), mask, 3, jnp.float64)
    sizes = np.sort(np.asarray((matrix > 0).sum(1)))[::-1]
    assert sizes[:3].tolist() == [3, 3, 1] and not sizes[3:].any()
    assert not np.asarray(matrix[:, 2]).any()
    close(np.asarray(matrix.sum(1))[np.asarray(matrix.sum(1)) > 0], 1)


def test_f_is_traced():
    _, mask, gram = stacked(vectors())
    rule = jax.jit(lambda f: robust.krum(gram, mask, f, selected=9 - f))
    for f in (1, 2):
        close(rule(f), robust.krum(gram, mask, f, selected=9 - f))
    assert rule._cache_size() == 1


RULES = [name for name in AGGREGATORS if name != "self_clip"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("name", RULES)
def test_rules_drop_updates_that_are_not_finite(name, bad):
    x = vectors(9).astype(np.float32)
    x[2] = bad
    rule, zero = AGGREGATORS[name](), np.zeros(x.shape[1], np.float32)
    weights = jnp.full((9,), 1 / 9, jnp.float32)
    honest = np.delete(x, 2, 0)
    senders = Senders(jnp.arange(9), {"x": jnp.asarray(np.insert(honest, 2, 0, axis=0))})
    updates, onto = {"x": jnp.asarray(x)}, {"x": jnp.asarray(zero)}
    new, _ = rule(weights, updates, onto, jax.random.key(0), senders)
    assert np.isfinite(new["x"]).all()
    assert (np.abs(new["x"]) <= np.abs(honest).max() + 1e-5).all()


def test_nearest_neighbours_leave_a_far_update_out():
    x = vectors(9).astype(np.float32)
    x[2] = 1e6
    weights, zero = jnp.full((9,), 1 / 9), jnp.zeros(x.shape[1])
    new, b = AGGREGATORS["nnm"]()(weights, {"x": jnp.asarray(x)}, {"x": zero}, jax.random.key(0))
    assert b[2] == 0 and np.abs(new["x"]).max() < 10


def test_self_clip_sees_small_distances_of_large_models():
    rng = np.random.default_rng(0)
    x = (1.0 + 1e-4 * rng.normal(size=(4, 10_000))).astype(np.float32)
    rule = AGGREGATORS["self_clip"](radius=1e-3)
    w = jnp.full((4, 4), 0.25)
    clipped = np.asarray(rule.mixing(w, {"x": jnp.asarray(x)}, jnp.arange(4)))
    distances = np.linalg.norm(x[:, None].astype(np.float64) - x[None], axis=2)
    wanted = 0.25 * np.minimum(1, 1e-3 / np.where(distances > 0, distances, 1))
    np.fill_diagonal(wanted, 0)
    np.fill_diagonal(wanted, 1 - wanted.sum(1))
    np.testing.assert_allclose(clipped, wanted, rtol=2e-3)
