"""APFL against its reference, and in its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.suite import check_algorithm
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.algorithms.newcomers import personalized
from tests.models.test_normalization import NormNet
from tests.references import apfl, network

VARIANTS = {
    "defaults": {},
    "every-step": {"alpha": 0.3, "adapt_alpha": "every_step"},
    "logits": {"form": "logits", "adapt_alpha": "first_epoch", "weighting": "uniform"},
}
QUICK = [("partial-map", "defaults"), ("full-vmap", "every-step"), ("partial-map", "logits")]


def algorithm(**settings):
    return pfl.make_algorithm("apfl", settings)


def reference(initial, case, rounds, settings, **changes):
    own = {("adapt" if name == "adapt_alpha" else name): value for name, value in settings.items()}
    epoch = case.federation.schedule.steps_per_epoch(case.sizes)
    return apfl.run(
        initial, case.clients(), rounds, **case.common(**changes), **own, epoch_steps=epoch
    )


def rows(tree, i):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[i], tree)


def assert_mixed_losses(record, case, models):
    """Those of the clients' mixed logits, with the model that the server has now."""
    wanted = []
    for i, (alpha, own) in enumerate(zip(models["alpha"], models["own"], strict=True)):
        at = case.samples(i, "test")
        z = apfl.mixed_logits(alpha, own, models["global"], case.x[at])
        wanted.append(network.cross_entropy(z, case.y[at])[0] if len(at) else np.nan)
    losses = record["scores"]["personalized/test/loss"]
    np.testing.assert_allclose(losses, wanted, 1e-9, 1e-9)


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    case, by_logits = Case(**PATTERNS[pattern]), settings.get("form") == "logits"
    wanted = reference(case.initial(), case, 3, settings)
    states, records = case.run_rounds(algorithm(**settings))
    batches = case.batches()
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_models(state.own, models["own"], f"own, round {t}")
        np.testing.assert_allclose(state.alphas, models["alpha"], 1e-9)
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        if case.scored and by_logits:
            assert_mixed_losses(record, case, models)
        elif not by_logits:
            assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], *[batches[t]] * (3 if by_logits else 2))
        present = case.present(t)
        alphas = np.where(present, models["alpha"], np.nan)
        np.testing.assert_allclose(record["clients"]["alpha"], alphas, 1e-9)
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, 1 if by_logits else None)
    # A public code overwrites v_i by the mixture after every round.
    gap = jax.tree.map(
        lambda v, w, v0: np.abs(v - (0.5 * v0 + 0.5 * w)).max(),
        *(state.own["params"], state.server["params"], states[-2].own["params"]),
    )
    assert max(jax.tree.leaves(gap)) > 1e-3
    assert np.ptp(states[-1].alphas) > 1e-3 and states[-1].alphas.min() >= 0


def test_logits_mixed_by_a_fixed_weight_take_two_gradients_of_a_minibatch():
    """The published code's default."""
    ours = algorithm(form="logits", adapt_alpha="never", alpha=0.3)
    (start, end), (record,) = run_rounds(ours, toy_federation((6,), (3,)), 1, scored=())
    np.testing.assert_array_equal(end.alphas, start.alphas)
    assert record["clients"]["local_steps"] == 2 * 2


@pytest.mark.parametrize("form", ["parameters", pytest.param("logits", marks=pytest.mark.slow)])
def test_new_clients_train_both_and_keep_the_servers_model(form):
    case, settings = Case(1, scored=False), {"alpha": 0.3, "adapt_alpha": "every_step"}
    settings["form"] = form
    start = case.initial("server")
    (models,) = reference(start, case, 1, settings, batches=case.batches("personalize"))
    made = personalized(algorithm(**settings), case)
    if form == "parameters":
        mixtures = [
            apfl.mixture(*pair, start) for pair in zip(models["alpha"], models["own"], strict=True)
        ]
        return assert_models(made, mixtures, "new clients")
    np.testing.assert_allclose(made["params"]["alpha"], models["alpha"], 1e-9)
    assert_models({"params": made["params"]["own"]}, models["own"], "own")
    assert_models({"params": made["params"]["shared"]}, [start] * 5, "shared")


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["parameters", "logits"])
def test_statistics_and_momentum_by_hand(form):
    """Two steps of one client on all of its samples; each model has a momentum of its own."""
    federation = toy_federation(
        (6,), (3,), model=NormNet(), batch_size=6, local_steps=2, momentum=0.5
    )
    settings = {"alpha": 0.3, "adapt_alpha": "every_step", "form": form}
    (start, end), (record,) = run_rounds(algorithm(**settings), federation, 1, scored=())
    data, task = federation.data, federation.task
    pool = data.train.index[:6]
    batch = pfl.training.Batch(
        data.samples[pool].astype(float), data.labels[pool], jnp.ones(6, bool)
    )
    gradient = jax.grad(lambda p, model: task.loss({**model, "params": p}, batch), has_aux=True)

    def blend(alpha, one, other):
        return jax.tree.map(lambda v, w: alpha * v + (1 - alpha) * w, one, other)

    def mixed(pair, v, w, alpha):
        models = [{**model, "params": p} for model, p in zip((v, w), pair, strict=True)]
        one, other = (task.outputs(m, batch.inputs, True, None, batch.valid) for m in models)
        z = alpha * one.logits + (1 - alpha) * other.logits
        return jnp.mean(task.losses(z, batch.labels)), {**v, **one.statistics}

    def moved(model, memory, g):
        memory = jax.tree.map(lambda m, g: 0.5 * m + g, memory, g)
        return jax.tree.map(lambda p, m: p - 0.3 * m, model["params"], memory), memory

    def dot(one, other):
        return sum(jnp.sum(a * b) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))

    @jax.jit
    def by_hand(w):
        v, alpha, total = w, 0.3, 0
        of_w = of_v = jax.tree.map(jnp.zeros_like, w["params"])
        for _ in range(2):
            g, after_w = gradient(w["params"], w)
            total += task.loss(w, batch)[0]
            params, of_w = moved(w, of_w, g)
            new_w = {**after_w, "params": params}
            if form == "parameters":
                middle = blend(alpha, v, w)
                g, after_v = gradient(middle["params"], middle)
                by_own, slope = g, dot(jax.tree.map(jnp.subtract, v["params"], w["params"]), g)
                by_own = jax.tree.map(lambda leaf, a=alpha: a * leaf, g)
            else:
                pair = v["params"], new_w["params"]
                g, after_v = jax.grad(mixed, has_aux=True)(pair, v, new_w, alpha)
                by_own = g[0]
            params, of_v = moved(v, of_v, by_own)
            v, w = {**after_v, "params": params}, new_w
            if form == "logits":
                apart = jax.tree.map(jnp.subtract, v["params"], w["params"])
                slope = dot(apart, blend(alpha, *g)) + 0.02 * alpha
            alpha = jnp.clip(alpha - 0.3 * slope, 0, 1)
        return w, v, alpha, total / 2

    w, v, alpha, loss = by_hand(start.server)
    assert_close(end.server, w, "w")
    assert_close(rows(end.own, 0), v, "v")
    np.testing.assert_allclose(end.alphas, [alpha], 1e-9)
    np.testing.assert_allclose(record["clients"]["train_loss"], [loss], 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parameters", "logits"])
def test_statistics_may_stay_with_their_clients(form):
    """With one client this changes nothing but where they are; a new one gets their mean."""
    ours, sizes = algorithm(form=form), ((6,), (3,))
    norms = ("shared", "affine_shared")
    federations = [toy_federation(*sizes, model=NormNet(), batch_norm=norm) for norm in norms]
    together, private = (pfl.simulate(ours, federation, 2) for federation in federations)
    name = "personalized/test/loss"
    np.testing.assert_allclose(private.scores[name], together.scores[name], 1e-9)
    assert "global/test/loss" not in private.scores
    made = [
        result.final.personalize(federation)
        for result, federation in zip((together, private), federations, strict=True)
    ]
    assert_close(made[1], made[0], "new clients", 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("leaves", ["head", "body"])
def test_copies_of_a_pair_adapt_the_heads_of_both_models_or_all_but_them(leaves):
    ours = algorithm(form="logits")
    federation = ours.prepare(toy_federation((6,), (3,)))
    key, t = jax.random.key(0), jnp.int32(0)
    ctx = pfl.Context(
        federation, key, t, t + 1, federation.participation.cohort(key, 0, jnp.arange(1))
    )
    own, shared = (jax.tree.map(lambda x: x[None], ctx.initial_model(name)) for name in "vw")
    before = ours.mixture(own, shared, jnp.array([0.3]))
    how = pfl.Adaptation(steps=1, leaves=leaves)
    after = jax.jit(lambda: ctx.adapt(before, jnp.arange(1), how))()
    moved = jax.tree.map(lambda new, old: bool((new != old).any()), after, before)["params"]
    for model in ("own", "shared"):
        both = {layer: set(moved[model][layer].values()) for layer in ("head", "fc_0")}
        assert both == {"head": {leaves == "head"}, "fc_0": {leaves == "body"}}
    assert moved["alpha"] == (leaves == "body")


def test_preparing_twice_changes_nothing():
    ours = algorithm(form="logits")
    once = ours.prepare(toy_federation())
    assert ours.prepare(once).network is once.network
    assert ours.remarks(once) == []


@pytest.mark.slow
def test_the_suite_on_mixed_logits():
    with jax.enable_x64(False):  # each check chooses
        check_algorithm(algorithm(form="logits"))
