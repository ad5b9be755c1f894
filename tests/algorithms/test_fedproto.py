"""FedProto against its reference: the term, the server's means, the nearest prototype."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms import fedproto as ours
from fedjax_pfl.algorithms.fedproto import State
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from fedjax_pfl.training import ClassSums
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import Case, maker, mean_loss
from tests.engine.finals import final_in
from tests.references import fedproto, network

WIDTH, CLASSES = 5, 3
SOME = np.array([True, False, True])
PUBLISHED = {
    "weight": 0.7,
    "distance": "batch",
    "feature_means": "last_epoch",
    "weighting": "uniform",
    "drop_missing": True,
    "eligible": "own",
}


algorithm = maker("fedproto")


def assert_sent(now):
    """C_i means up, those of the server down, and no model."""
    up, down = np.zeros((2, now.case.num_clients), int)
    for i, (_, counts) in now.wanted["sent"].items():
        up[i], down[i] = WIDTH * (counts > 0).sum(), WIDTH * now.before.prototypes.exist.sum()
    np.testing.assert_array_equal(now.clients["numbers_up"], up)
    np.testing.assert_array_equal(now.clients["numbers_down"], down)
    if now.settings.get("feature_means") != "last_epoch":
        np.testing.assert_array_equal(now.clients["forward_samples"], now.case.sizes * now.present)


def assert_nearest(now):
    """The headline: test accuracies by nearest prototype; by the own head where there's none."""
    case, known = now.case, now.wanted
    if not case.scored:
        return
    every = now.settings.get("eligible", "all") == "all"
    for i, model in enumerate(known["personalized"]):
        at = case.samples(i, "test")
        eligible = known["exists"] & (known["classes"][i] | every)
        found = network.predict(model, case.x[at])
        if eligible.any():
            found = fedproto.nearest_prototype(model, case.x[at], known["prototypes"], eligible)
        accuracy = np.mean(found == case.y[at]) if len(at) else np.nan
        scored = now.record["scores"]["personalized/test/accuracy"][i]
        np.testing.assert_allclose(scored, accuracy, 1e-12)


def assert_first_losses(one):
    """Means over the steps of the first round, in which there is no term."""
    case, (now, *_) = one.case, one.rounds()
    for i in now.cohort:
        mean = mean_loss(case, case.initial(), (now.batches()[i], case.rates[0], None))
        np.testing.assert_allclose(now.clients["train_loss"][i], mean, 1e-9)


def last_epoch_steps(one):
    return {"last_epoch_steps": one.case.federation.schedule.steps_per_epoch(one.case.sizes)}


def assert_record(now):
    assert_sent(now)
    assert_nearest(now)


test_reference, test_contract = comparison(
    "fedproto",
    fedproto.run,
    variants={
        "paper": {"weight": 1.7},
        "published": PUBLISHED,
        "published, the last two of five steps": Variant(PUBLISHED, options={"local_steps": 5}),
        "class means": {"weight": 0.9, "distance": "class_means", "eligible": "own"},
    },
    ours=("eligible",),
    renamed={"distance": "over"},
    given=last_epoch_steps,
    states={
        "models": "personalized",
        "prototypes.exist": "exists",
        "prototypes.means": "prototypes",
    },
    scores={"head": "personalized"},
    copies=0,
    check=assert_record,
    finish=assert_first_losses,
)


@pytest.mark.parametrize("distance", fedproto.DISTANCES)
def test_pull_and_its_gradient(distance):
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
def test_aggregated_prototypes(weighting, drop_missing):
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


def test_class_sums_in_half_precision():
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


def test_nearest_far_from_zero():
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
def test_eligible_classes(which):
    """Those of the client's training samples, or every class that has a prototype."""
    prototypes = ours.Prototypes(np.ones((CLASSES, WIDTH)), np.array([True, True, False]))
    counts = jnp.asarray([[3, 0, 2], [0, 4, 1], [0, 0, 5]])
    ctx = SimpleNamespace(federation=SimpleNamespace(data=SimpleNamespace(class_counts=counts)))
    heads = {"kernel": np.zeros((3, WIDTH, CLASSES)), "bias": np.full((3, CLASSES), 7.0)}
    rows = np.array([2, 0, 1])
    own = {"params": {"head": heads}}
    one = algorithm(eligible=which)
    made = jax.jit(lambda own: one.predictors(ctx, own, prototypes, rows))(own)
    bias = made["params"]["head"]["bias"]
    found = {"own": [[0, 0, 0], [1, 0, 0], [0, 1, 0]], "all": [[1, 1, 0]] * 3}[which]
    none = ~np.any(found, axis=1)
    np.testing.assert_array_equal(bias[none], 7)  # the client's own head
    np.testing.assert_array_equal(bias[~none] > -1e8, np.array(found)[~none])


@pytest.mark.costly
def test_client_whose_features_overflow_leaves_the_cohort():
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


@pytest.mark.costly
def test_new_clients_train_from_the_initial_model_near_the_prototypes():
    """It trains all leaves, those too that rounds leave frozen."""
    case = Case()
    one = algorithm(weight=1.5)
    means = np.random.default_rng(8).normal(size=(CLASSES, WIDTH))
    prototypes = ours.Prototypes(jnp.asarray(means), jnp.asarray(SOME))
    far = jax.tree.map(lambda leaf: np.stack([leaf + 3] * 5), {"params": case.initial()})
    final = final_in(State(far, prototypes), one, case.federation, rounds=3)
    new = Case(rounds=1, train_sizes=(6,))
    result = final.personalize(new.federation.with_frozen("head"))["params"]
    key = keys.of_round(new.key, "personalize", 2)
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
