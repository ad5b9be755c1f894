"""Robust rules equal the vector code of their papers, and tolerate what they promise."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.aggregation import robust, similarity
from fedjax_pfl.aggregation.aggregators import Senders
from fedjax_pfl.aggregation.robust_rules import AFTER_MEANS, AGGREGATORS
from tests.references import robust as reference

PUBLISHED = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])  # byzfl's worked example

pytestmark = pytest.mark.usefixtures("double_precision")


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
    held = jax.tree.map(lambda leaf: np.where(np.array(mask)[:, None], leaf, 0), stack)
    return stack, jnp.asarray(mask), jax.jit(similarity.gram)(held, held)


def total(weights, stack):
    weights = np.asarray(weights)
    return np.concatenate([weights @ np.asarray(leaf) for leaf in jax.tree.leaves(stack)])


def flat(tree):
    return np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(tree)])


def close(ours, theirs, tolerance=1e-10):
    np.testing.assert_allclose(ours, theirs, atol=tolerance)


@jax.jit
def found(stack, mask, gram, f):
    """What all rules make of a stack, in one program."""
    even, selected = mask / jnp.sum(mask), jnp.sum(mask) - f
    return {
        "squares": robust.pairwise_squares(gram),
        "krum": [robust.krum(gram, mask, f, excluded=k) for k in (1, 2)],
        "multi-krum": [robust.krum(gram, mask, f, selected, excluded=k) for k in (1, 2)],
        "median": robust.geometric_median(gram, even, steps=4, smoothing=0.1),
        "median from zero": robust.geometric_median(gram, even, 4, 0.1, start_at_mean=False),
        "clipping": [robust.centred_clipping(gram, even, 1.5, steps) for steps in (1, 3)],
        "norm bound": robust.norm_bound(gram, even, 1.5),
        "nearest neighbours": robust.nearest_neighbour_mixing(gram, mask, f),
        "coordinate median": robust.coordinate_median(stack, mask),
        "trimmed mean": robust.trimmed_mean(stack, mask, f),
        "bulyan": robust.bulyan(gram, stack, mask, f),
    }


@pytest.mark.parametrize("absent", [(), (0, 5)])
@pytest.mark.parametrize("f", [1, 2])
def test_rules(f, absent):
    x = vectors()
    stack, mask, gram = stacked(x, absent)
    n, ours, here = len(x), found(stack, mask, gram, f), np.asarray(mask)
    close(np.asarray(ours["squares"])[here][:, here], reference.distances(x))
    for neighbours, one, several in zip((1, 2), ours["krum"], ours["multi-krum"], strict=True):
        close(total(one, stack), reference.krum(x, f, neighbours=neighbours))
        close(total(several, stack), reference.krum(x, f, n - f, neighbours))
    even, mean = np.ones(n) / n, x.mean(0)
    close(total(ours["median"], stack), reference.geometric_median(x, even, 4, 0.1, mean))
    w = ours["median from zero"]
    close(total(w, stack), reference.geometric_median(x, even, 4, 0.1, 0 * mean))
    for steps, w in zip((1, 3), ours["clipping"], strict=True):
        close(total(w, stack), reference.centred_clipping(x, even, 1.5, steps))
    clipped = [reference.clip(v, 1.5) for v in x]
    close(total(ours["norm bound"], stack), np.mean(clipped, axis=0))
    mixed = np.array([total(row, stack) for row in ours["nearest neighbours"]])
    close(mixed[here], reference.nearest_neighbour_mixing(x, f))
    close(flat(ours["coordinate median"]), reference.median(x))
    close(flat(ours["trimmed mean"]), reference.trimmed_mean(x, f))
    close(flat(ours["bulyan"]), reference.bulyan(x, f))


@jax.jit
def found_in_the_example(stack, mask, gram):
    return {
        "trimmed mean": robust.trimmed_mean(stack, mask, 1),
        "krum": robust.krum(gram, mask, 1, excluded=1),
        "multi-krum": robust.krum(gram, mask, 1, selected=2, excluded=1),
        "nearest neighbours": robust.nearest_neighbour_mixing(gram, mask, 1),
        "median": robust.geometric_median(gram, mask / 3, 3, 0.1, start_at_mean=False),
    }


def test_published_example():
    """The values in byzfl's documentation, f = 1."""
    stack, mask, gram = stacked(PUBLISHED)
    ours = found_in_the_example(stack, mask, gram)
    close(flat(ours["trimmed mean"]), [4, 5, 6])
    close(total(ours["krum"], stack), [1, 2, 3])
    close(total(ours["multi-krum"], stack), [2.5, 3.5, 4.5])
    close([total(row, stack)[0] for row in ours["nearest neighbours"]], [2.5, 2.5, 5.5])
    close(total(ours["median"], stack), [3.7879, 4.7879, 5.7879], 1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_foolsgold_punishes_equal_updates(seed):
    history = vectors(6, 5, seed)
    history[4:] = history[3] + 1e-3 * history[4:]  # three of a kind
    _, mask, gram = stacked(history)
    ours = jax.jit(robust.foolsgold)(gram, mask)
    close(ours, reference.foolsgold(history))
    assert np.all(np.asarray(ours[3:]) < 0.05)


def test_foolsgold_pardons_no_opposite_of_two_alike():
    """By the authors' code, whose matrix has 0 for each member's cosine with itself."""
    _, mask, gram = stacked(np.array([[1, 0, 0.2], [1, 0.3, 0], [-1, 0.1, 0.1]]))
    close(jax.jit(robust.foolsgold)(gram, mask), [0, 0, 1])


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


@pytest.mark.costly
def test_self_clip_of_some_receivers():
    x, w = vectors(4, 5), np.random.default_rng(3).dirichlet(np.ones(4), 4)
    rule = AGGREGATORS["self_clip"](radius=1.5)
    whole = rule.mixing(jnp.asarray(w), {"a": jnp.asarray(x)}, jnp.arange(4))
    some = jnp.array([3, 1])
    close(rule.mixing(jnp.asarray(w)[some], {"a": jnp.asarray(x)}, some), whole[some])
    assert np.abs(whole - w).max() > 0.01


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_self_clip_by_a_share_of_the_weights(share):
    x, w = vectors(6, 5), np.random.default_rng(3).dirichlet(np.ones(6), 6)
    x[2] = 1e30
    rule = AGGREGATORS["self_clip"](share=share)
    stack, own = {"a": jnp.asarray(x)}, jnp.arange(6)
    both = jnp.stack([jnp.asarray(w), jnp.eye(6)])  # blocks of a model
    matrix, untouched = jax.jit(lambda w: rule.mixing(w, stack, own))(both)
    radius = reference.clip_radius(w, x, share)
    away = np.linalg.norm(x[:, None] - x, axis=2)
    wanted = w * np.minimum(1, radius[:, None] / np.where(away > 0, away, 1))
    np.fill_diagonal(wanted, 0)
    np.fill_diagonal(wanted, 1 - wanted.sum(1))
    close(matrix, wanted)
    close(untouched, np.eye(6))


@jax.jit
def found_without_attackers(stack, mask, gram):
    even = mask / len(mask)
    return [
        robust.krum(gram, mask, 0, selected=len(mask)),
        robust.centred_clipping(gram, even, jnp.inf),
        robust.norm_bound(gram, even, jnp.inf),
        even @ robust.nearest_neighbour_mixing(gram, mask, 0),
    ], robust.trimmed_mean(stack, mask, 0)


def test_rules_without_attackers_are_the_mean():
    x = vectors()
    stack, mask, gram = stacked(x)
    weights, trimmed = found_without_attackers(stack, mask, gram)
    for w in weights:
        close(total(w, stack), x.mean(0))
    close(flat(trimmed), x.mean(0))


@pytest.mark.parametrize("bad", [1e12, -1e12])
def test_breakdown(bad):
    """f arbitrary updates keep the result within reach of the honest ones."""
    honest, f = vectors(9), 2
    x = np.concatenate([np.full((f, honest.shape[1]), bad), honest])
    stack, mask, gram = stacked(x)
    ours = found(stack, mask, gram, f)
    sorting = [flat(ours[name]) for name in ("coordinate median", "trimmed mean", "bulyan")]
    for result in (*sorting, total(ours["krum"][1], stack)):
        assert np.all(result >= honest.min(0) - 1e-9) and np.all(result <= honest.max(0) + 1e-9)
    holes = {"x": jnp.asarray(np.where(np.arange(len(x))[:, None] == 0, np.nan, x))}
    for hole in (robust.coordinate_median(holes, mask), robust.trimmed_mean(holes, mask, f)):
        assert np.all(np.asarray(hole["x"]) <= honest.max(0) + 1e-9)
    # The Weiszfeld iteration only converges towards the honest members.
    w = jax.jit(partial(robust.geometric_median, steps=60))(gram, np.full(len(x), 1 / len(x)))
    assert np.linalg.norm(total(w, stack) - honest.mean(0)) < 5


def test_buckets():
    x = vectors(7)
    _, mask, _ = stacked(x, absent=(2,))
    matrix = robust.bucketing(jax.random.key(0), mask, 3, jnp.float64)
    sizes = np.sort(np.asarray((matrix > 0).sum(1)))[::-1]
    assert sizes[:3].tolist() == [3, 3, 1] and not sizes[3:].any()
    assert not np.asarray(matrix[:, 2]).any()
    close(np.asarray(matrix.sum(1))[np.asarray(matrix.sum(1)) > 0], 1)


RULES = [name for name in AGGREGATORS if name != "self_clip"]


@cache
def compiled(name):
    rule = AGGREGATORS[name]()
    return jax.jit(lambda *operands: rule(*operands))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("name", RULES)
def test_rules_drop_updates_that_are_not_finite(name, bad):
    x = vectors(9).astype(np.float32)
    x[2] = bad
    zero = np.zeros(x.shape[1], np.float32)
    weights = jnp.full((9,), 1 / 9, jnp.float32)
    honest = np.delete(x, 2, 0)
    senders = Senders(jnp.arange(9), {"x": jnp.asarray(np.insert(honest, 2, 0, axis=0))})
    updates, onto = {"x": jnp.asarray(x)}, {"x": jnp.asarray(zero)}
    new, used = compiled(name)(weights, updates, onto, jax.random.key(0), senders)
    assert np.isfinite(new["x"]).all() and (used is None or used[2] == 0)
    assert (np.abs(new["x"]) <= np.abs(honest).max() + 1e-5).all()


AFTER = {
    "krum": lambda x, f: reference.krum(x, f, neighbours=1),
    "multi_krum": lambda x, f: reference.krum(x, f, len(x) - f, neighbours=1),
    "rfa": lambda x, f: reference.geometric_median(x, np.ones(len(x)) / len(x), 8, 9.0, x.mean(0)),
    "cclip": lambda x, f: reference.centred_clipping(x, np.ones(len(x)) / len(x), 2.0, 3),
    "median": lambda x, f: reference.median(x),
    "trimmed_mean": reference.trimmed_mean,
}


@cache
def after_means():
    """Each rule over means, in one program."""
    rules = {
        (name, then): AGGREGATORS[name](f=1, then=then, excluded=1, radius=2.0, smoothing=9.0)
        for name in ("nnm", "bucketing")
        for then in AFTER_MEANS
    }
    return jax.jit(lambda *operands: {key: rule(*operands) for key, rule in rules.items()})


@pytest.mark.costly
def test_every_rule_of_means():
    """Twelve members of which one is absent: six groups, the last one of a single member."""
    x, key = 6 * vectors(12), jax.random.key(5)
    mask = jnp.arange(12) != 4
    weights = jnp.where(mask, 1 / 11, 0)
    found = after_means()(weights, {"x": jnp.asarray(x)}, {"x": jnp.zeros(7)}, key)
    groups = np.asarray(robust.bucketing(key, mask, 2, jnp.float64))
    groups = groups[groups.any(axis=1)]
    assert len(groups) == 6
    here = np.delete(x, 4, axis=0)
    means = {"nnm": reference.nearest_neighbour_mixing(here, 1), "bucketing": groups @ x}
    assert {then for _, then in found} == set(AFTER)
    for (name, then), (new, b) in found.items():
        np.testing.assert_allclose(
            new["x"], AFTER[then](means[name], 1), atol=1e-9, err_msg=f"{name}, {then}"
        )
        if b is not None:
            close(b @ x, new["x"])
            assert b[4] == 0
    assert AGGREGATORS["bucketing"](f=1, then="median").needed() == 5
    assert AGGREGATORS["bucketing"](f=1).needed() == 9


@pytest.mark.parametrize(("name", "needed"), [("krum", 5), ("trimmed_mean", 3)])
def test_too_few_updates_change_nothing(name, needed):
    """One row is not finite, so it does not count."""
    for members in (needed, needed + 1):
        x = vectors(9).astype(np.float32)
        x[0] = np.nan
        weights = jnp.asarray(np.arange(9) < members, jnp.float32) / members
        onto = jnp.full(x.shape[1], 3.0)
        new, b = compiled(name)(weights, {"x": jnp.asarray(x)}, {"x": onto}, jax.random.key(0))
        assert np.any(new["x"] != onto) == (members > needed)
        assert b is None or np.any(b != 0) == (members > needed)


def test_self_clip_sees_small_distances_of_large_models():
    rng = np.random.default_rng(0)
    x = (1.0 + 1e-4 * rng.normal(size=(4, 10_000))).astype(np.float32)
    rule = AGGREGATORS["self_clip"](radius=1e-3)
    w = jnp.full((4, 4), 0.25)
    clipped = np.asarray(jax.jit(rule.mixing)(w, {"x": jnp.asarray(x)}, jnp.arange(4)))
    distances = np.linalg.norm(x[:, None].astype(np.float64) - x[None], axis=2)
    wanted = 0.25 * np.minimum(1, 1e-3 / np.where(distances > 0, distances, 1))
    np.fill_diagonal(wanted, 0)
    np.fill_diagonal(wanted, 1 - wanted.sum(1))
    np.testing.assert_allclose(clipped, wanted, rtol=2e-3)


@pytest.mark.parametrize(("members", "wanted"), [(4, 3.0), (3, 2.0)])
def test_coordinate_median_of_an_even_and_an_odd_number(members, wanted):
    values = jnp.asarray([[4.0], [1.0], [2.0], [9.0], [7.0]])
    found = robust.coordinate_median(values, jnp.arange(5) < members)
    np.testing.assert_allclose(found, [wanted])
