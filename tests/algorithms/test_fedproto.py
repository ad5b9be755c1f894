"""FedProto against its reference: the term, the server's means, the nearest prototype."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms import fedproto as ours
from fedjax_pfl.algorithms.fedproto import State
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.testing.toys import (
    SEEDS,
    TanhNetwork,
    assert_close,
    run_rounds,
    states_of,
    toy_federation,
)
from fedjax_pfl.training import ClassSums
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
    stack,
)
from tests.engine.finals import final_in
from tests.references import fedproto, network

WIDTH, CLASSES = 5, 3
VARIANTS = {
    "paper": {"weight": 2.0},
    "published": {
        "weight": 0.7,
        "distance": "batch",
        "feature_means": "last_epoch",
        "weighting": "uniform",
        "drop_missing": True,
        "eligible": "own",
    },
    "class-means": {"weight": 0.9, "distance": "class_means", "eligible": "own"},
}
SOME = np.array([True, False, True])


def algorithm(**settings):
    return pfl.make_algorithm("fedproto", settings)


def options_of(settings):
    """The reference's names."""
    named = {k: v for k, v in settings.items() if k not in ("distance", "eligible")}
    return named | {"over": settings.get("distance", "matched")}


@over(PATTERNS, [("partial-map", "paper"), ("full-vmap", "published")], VARIANTS)
def test_reference(pattern, variant):
    compare(Case(**PATTERNS[pattern]), VARIANTS[variant])


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 5])
def test_the_last_steps_that_make_an_epoch(steps):
    """Fewer than an epoch has, and more: of five steps of a client with two in an epoch, two."""
    case = Case(local_steps=steps, scored=False)
    compare(case, VARIANTS["published"])


def compare(case, settings):
    common, steps = case.common(), case.federation.schedule.steps_per_epoch(case.sizes)
    known = {"last_epoch_steps": steps} | options_of(settings)
    wanted = fedproto.run(case.initial(), case.clients(), 3, **common, **known)
    states, records = case.run_rounds(algorithm(**settings))
    assert_first_losses(records[0], case, common["batches"][0])
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_models(state.models, models["personalized"], "personalized")
        exist = models["exists"]
        np.testing.assert_array_equal(state.prototypes.exist, exist)
        found = state.prototypes.means[exist]
        np.testing.assert_allclose(found, models["prototypes"][exist], 1e-9)
        assert_losses(record, case, "head", models["personalized"])
        assert_nearest(record, case, models, settings.get("eligible", "all"))
        assert_steps(record, case.cohorts[t], common["batches"][t])
        assert_sent(record, case, states[t].prototypes.exist, models["sent"])
        present = case.present(t)
        if settings.get("feature_means") != "last_epoch":
            seen = record["clients"]["forward_samples"]
            np.testing.assert_array_equal(seen, case.sizes * present)


def assert_first_losses(record, case, batches):
    """Means over the steps of the first round, in which there is no term."""
    for i in case.cohorts[0]:
        model, losses = case.initial(), []
        for at in batches[i]:
            loss, slope = network.loss_and_gradient(model, case.x[at], case.y[at])
            model = network.subtract(model, network.scale(case.rates[0], slope))
            losses.append(loss)
        mean = sum(losses) / max(len(losses), 1)
        np.testing.assert_allclose(record["clients"]["train_loss"][i], mean, 1e-9)


def assert_sent(record, case, exist, sent):
    """C_i means up, those of the server down, and no model."""
    assert not record["up"].any() and not record["down"].any()
    up, down = np.zeros((2, case.num_clients), int)
    for i, (_, counts) in sent.items():
        up[i], down[i] = WIDTH * (counts > 0).sum(), WIDTH * exist.sum()
    np.testing.assert_array_equal(record["clients"]["numbers_up"], up)
    np.testing.assert_array_equal(record["clients"]["numbers_down"], down)


def assert_nearest(record, case, models, which):
    """The headline: test accuracies by nearest prototype; by the own head where there's none."""
    if not case.scored:
        return
    for i, model in enumerate(models["personalized"]):
        at = case.samples(i, "test")
        eligible = models["exists"] & (models["classes"][i] | (which == "all"))
        found = network.predict(model, case.x[at])
        if eligible.any():
            found = fedproto.nearest_prototype(model, case.x[at], models["prototypes"], eligible)
        accuracy = np.mean(found == case.y[at]) if len(at) else np.nan
        scored = record["scores"]["personalized/test/accuracy"][i]
        np.testing.assert_allclose(scored, accuracy, 1e-12)


@pytest.mark.parametrize("distance", fedproto.DISTANCES)
def test_the_term_and_its_slope(distance):
    """Padding doesn't count, nor do classes without a prototype."""
    rng = np.random.default_rng(3)
    z, means = rng.normal(size=(8, WIDTH)), rng.normal(size=(CLASSES, WIDTH))
    y, valid = np.array([0, 1, 2, 0, 2, 1, 0, 2]), np.arange(8) < 6
    prototypes = ours.Prototypes(jnp.asarray(means), jnp.asarray(SOME))
    one = algorithm(distance=distance, weight=0.7)

    @jax.jit
    @jax.value_and_grad
    def term(z, labels):
        batch = SimpleNamespace(features=z, labels=labels, valid=jnp.asarray(valid))
        return one.pull(None, batch, prototypes, None)

    loss, slope = term(z, y)
    wanted, pull = fedproto.prototype_loss(z[valid], y[valid], means, SOME, distance)
    np.testing.assert_allclose(loss, 0.7 * wanted, 1e-12)
    np.testing.assert_allclose(slope[valid], 0.7 * pull, 1e-12)
    assert not slope[~valid].any()
    none, slope = term(z, np.ones(8, int))
    assert none == 0 and not slope.any()


@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("drop_missing", [False, True])
def test_the_servers_means(weighting, drop_missing):
    """Also of clients that hold alike, whose mean is theirs: not divided by their number again."""
    rng = np.random.default_rng(5)
    counts = np.array([[3, 0, 0], [1, 0, 2], [0, 0, 0]])  # the last one is absent
    totals = rng.normal(size=(3, CLASSES, WIDTH)) * (counts > 0)[..., None]
    before, exist = rng.normal(size=(CLASSES, WIDTH)), np.array([True, True, False])
    sent = [(totals[i] / np.maximum(counts[i], 1)[:, None], counts[i]) for i in (0, 1)]
    wanted, there = fedproto.aggregated(sent, before, exist, weighting, drop_missing)
    one = algorithm(weighting=weighting, drop_missing=drop_missing)
    aggregated, last = jax.jit(one.aggregated), ours.Prototypes(before, exist)
    result = aggregated(last, ClassSums(totals, counts), np.array([True, True, False]))
    np.testing.assert_array_equal(result.exist, there)
    np.testing.assert_allclose(result.means, wanted, 1e-12)
    assert there.tolist() == [True, not drop_missing, True]
    alike = ClassSums(np.full_like(totals, 6), np.full_like(counts, 4))
    np.testing.assert_allclose(aggregated(last, alike, np.ones(3, bool)).means, 1.5, 1e-15)
    none = ClassSums(np.zeros_like(totals), np.zeros_like(counts))
    assert_close(aggregated(last, none, np.zeros(3, bool)), last, "nobody", 0)


def test_half_precision_adds_up_many_samples():
    @jax.jit
    def after_4096_samples():
        exist, ones = jnp.ones(CLASSES, bool), jnp.ones((4, WIDTH), "bfloat16")
        last = ours.Prototypes(jnp.zeros((CLASSES, WIDTH), "bfloat16"), exist)
        batch = SimpleNamespace(labels=jnp.zeros(4, jnp.int32), valid=jnp.ones(4, bool))
        before = jax.tree.map(
            lambda leaf: leaf + 4096, ClassSums.zeros(CLASSES, WIDTH, last.means.dtype)
        )
        sums = jax.tree.map(jnp.add, before, ClassSums.of(batch, ones, CLASSES))
        of_one = jax.tree.map(lambda leaf: leaf[None], sums)
        return sums, algorithm().aggregated(last, of_one, exist[:1])

    sums, result = after_4096_samples()
    np.testing.assert_array_equal(sums.totals[0], 4100)
    assert result.means.dtype == "bfloat16" and (np.asarray(result.means) == 1).all()


def test_the_head_of_the_nearest_prototype_far_from_zero():
    """Logits are differences of large numbers, unless the prototypes' mean is taken out."""
    rng = np.random.default_rng(6)
    means, z = 300 + rng.normal(size=(CLASSES, WIDTH)), 300 + rng.normal(size=(50, WIDTH))
    own = {"kernel": np.ones((WIDTH, CLASSES), "float32"), "bias": np.ones(CLASSES, "float32")}
    nearest, single = jax.jit(ours.nearest), means.astype("float32")
    for eligible in (np.ones(CLASSES, bool), SOME):
        head = jax.device_get(nearest(single, eligible, own))
        assert head["kernel"].dtype == head["bias"].dtype == np.float32
        result = np.argmax(np.asarray(z, np.float32) @ head["kernel"] + head["bias"], axis=1)
        distances = np.where(eligible, ((z[:, None] - means) ** 2).sum(axis=2), np.inf)
        near = np.partition(distances, 1, axis=1)
        clear = near[:, 1] - near[:, 0] > 0.02
        assert clear.sum() > 40
        np.testing.assert_array_equal(result[clear], distances.argmin(axis=1)[clear])
    nobody = nearest(single, np.zeros(CLASSES, bool), own)
    assert_close(nobody, own, "no class is eligible", 0)


@pytest.mark.parametrize("which", ["all", "own"])
def test_the_classes_among_which_the_nearest_is_found(which):
    """Those of the client's training samples, or every class that has a prototype."""
    case = Case(scored=False)
    rng = np.random.default_rng(11)
    means, exist = rng.normal(size=(CLASSES, WIDTH)), np.array([True, True, False])
    counts = np.array([[3, 0, 2], [0, 4, 1], [0, 0, 5]])  # the last one's class has no prototype
    initial = case.initial()
    own = [jax.tree.map(lambda w: w + rng.normal(size=w.shape), initial) for _ in counts]
    state = State(stack(own), ours.Prototypes(means, exist))
    data = SimpleNamespace(class_counts=jnp.asarray(counts))
    ctx = SimpleNamespace(federation=SimpleNamespace(data=data))
    one = algorithm(eligible=which)
    named = jax.device_get(jax.jit(lambda state: one.models(ctx, state, np.arange(3)))(state))
    assert_close(named["head"], state.models, "own heads", 0)
    for i, model in enumerate(own):
        result = jax.tree.map(lambda leaf, i=i: leaf[i], named["personalized"]["params"])
        eligible = exist & ((counts[i] > 0) | (which == "all"))
        wanted = network.predict(model, case.x)
        if eligible.any():
            wanted = fedproto.nearest_prototype(model, case.x, means, eligible)
        np.testing.assert_array_equal(network.predict(result, case.x), wanted)


def test_a_client_whose_features_overflow_leaves_the_cohort():
    """Training sees its samples clipped, the pass over them as they are does not."""

    def clipped(key, images):
        return jnp.clip(images, -3, 3)

    bad, federation = 3, toy_federation(model=TanhNetwork(), diverging=3, augment=clipped)
    (before, after), (record,) = run_rounds(algorithm(), federation, 1, scored=())
    assert np.flatnonzero(record["clients"]["diverged"]).tolist() == [bad]
    assert not record["clients"]["numbers_up"][bad]
    moved = abs(after.models["params"]["head"]["bias"] - before.models["params"]["head"]["bias"])
    assert (moved.max(axis=1) > 0).tolist() == [i != bad for i in range(5)]
    assert np.isfinite(after.prototypes.means).all()


def by_chance(key, images):
    return images + jax.random.normal(key, images.shape, images.dtype)


@pytest.mark.thorough
def test_means_are_over_samples_as_they_are():
    """Training sees them augmented."""
    case = Case(rounds=1, model=MLP(3, (5,)), augment=by_chance)
    state = states_of(algorithm(), case.federation, 1)[-1]
    total, count = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
    for i in range(case.num_clients):
        layer = jax.tree.map(lambda leaf, i=i: leaf[i], state.models["params"]["fc_0"])
        for k in case.samples(i):
            total[case.y[k]] += np.maximum(case.x[k] @ layer["kernel"] + layer["bias"], 0)
            count[case.y[k]] += 1
    np.testing.assert_allclose(state.prototypes.means, total / count[:, None], 1e-9)


@pytest.mark.thorough
def test_a_new_client_begins_with_the_initial_model_and_stays_near_the_prototypes():
    """It trains all leaves, those too that rounds leave frozen."""
    case = Case()
    one = algorithm(weight=1.5)
    means = np.random.default_rng(8).normal(size=(CLASSES, WIDTH))
    prototypes = ours.Prototypes(jnp.asarray(means), jnp.asarray(SOME))
    far = jax.tree.map(lambda leaf: np.stack([leaf + 3] * 5), {"params": case.initial()})
    final = final_in(State(far, prototypes), one, case.federation, rounds=3)
    new = Case(rounds=1, train_sizes=(6,))
    result = final.personalize(new.federation.with_frozen("head"))["params"]
    key = keys.of_round(jax.random.key(SEEDS[0]), "personalize", 2)
    model, schedule = case.initial(), new.federation.schedule
    for (batch,) in pfl.training.batch_indices(schedule, new.federation.data.train, key, 0, 0):
        x, y = new.x[batch], new.y[batch]
        slope = fedproto.loss_gradient(model, x, y, means, SOME, 1.5)[1]
        model = network.subtract(model, network.scale(case.rates[2], slope))
    head = fedproto.with_prototype_head(model, means, SOME)["head"]
    made = jax.tree.map(lambda leaf: leaf[0, 0], result)
    assert_close(made["hidden"], model["hidden"], "new client")
    nearest = network.predict({**model, "head": head}, case.x)
    np.testing.assert_array_equal(network.predict(made, case.x), nearest)


def test_a_reader_is_told_what_megabytes_and_scores_are():
    one = algorithm()
    told = "models stay with their clients, mean features of classes are sent"
    federation = one.prepare(toy_federation())
    scored = "scored by the nearest prototype among {}; its head's score is called head"
    assert one.remarks(federation) == [told, scored.format("all classes")]
    own = algorithm(eligible="own").remarks(federation)
    assert own == [told, scored.format("the client's own classes")]
