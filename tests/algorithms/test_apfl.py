"""APFL against its reference, its forms, and its new clients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, assert_losses, assert_models, assert_steps, maker
from tests.algorithms.newcomers import personalized
from tests.models.norm_net import NormNet
from tests.references import apfl, network

FORMS = ("parameters", "logits")


algorithm = maker("apfl")


def assert_mixed_losses(now):
    """Those of the clients' mixed logits, with the model that the server has now."""
    case, wanted = now.case, []
    for i, (alpha, own) in enumerate(zip(now.wanted["alpha"], now.wanted["own"], strict=True)):
        at = case.samples(i, "test")
        z = apfl.mixed_logits(alpha, own, now.wanted["global"], case.x[at])
        wanted.append(network.cross_entropy(z, case.y[at])[0] if len(at) else np.nan)
    losses = now.record["scores"]["personalized/test/loss"]
    np.testing.assert_allclose(losses, wanted, 1e-9, 1e-9)


def check_form(now):
    by_logits = now.settings.get("form") == "logits"
    if not by_logits:
        assert_losses(now.record, now.case, "personalized", now.wanted["personalized"])
    elif now.case.scored:
        assert_mixed_losses(now)
    assert_steps(now.record, now.cohort, *[now.batches()] * (3 if by_logits else 2))
    alphas = np.where(now.present, now.wanted["alpha"], np.nan)
    np.testing.assert_allclose(now.clients["alpha"], alphas, 1e-9)
    now.assert_mean()


test_reference, test_contract = comparison(
    "apfl",
    apfl.run,
    settings={"alpha": 0.3},
    variants={
        "defaults": {},
        "every-step": {"adapt_alpha": "every_step"},
        "logits": {"form": "logits", "adapt_alpha": "first_epoch", "weighting": "uniform"},
    },
    renamed={"adapt_alpha": "adapt"},
    given=lambda one: {"epoch_steps": one.case.federation.schedule.steps_per_epoch(one.case.sizes)},
    states={"server": "global", "own": "own", "alphas": "alpha"},
    scores={"global": "global"},
    steps=(),
    check=check_form,
)


@pytest.mark.costly
@pytest.mark.parametrize("form", FORMS)
def test_personalize_trains_both_models_and_keeps_the_servers(form):
    case = Case(1, scored=False)
    start, settings = case.initial("server"), {"alpha": 0.3, "form": form}
    setting = case.setting(initial=start, batches=case.batches("personalize"))
    (models,) = apfl.run(setting, adapt="every_step", **settings)
    made = personalized(algorithm(adapt_alpha="every_step", **settings), case)
    if form == "parameters":
        mixtures = [
            apfl.mixture(*pair, start) for pair in zip(models["alpha"], models["own"], strict=True)
        ]
        return assert_models(made, mixtures, "new clients")
    np.testing.assert_allclose(made["params"]["alpha"], models["alpha"], 1e-9)
    assert_models({"params": made["params"]["own"]}, models["own"], "own")
    assert_models({"params": made["params"]["shared"]}, [start] * 5, "shared")


@pytest.mark.costly
@pytest.mark.parametrize("form", FORMS)
def test_momentum_and_running_statistics_of_each_model(form):
    """With a fixed weight of 1 the own model is the local one, and the server's is FedAvg's."""
    federation = toy_federation(model=NormNet(), momentum=0.5)
    ours = algorithm(alpha=1.0, adapt_alpha="never", form=form)
    (state, *_), (record, *_) = (each[-1:] for each in run_rounds(ours, federation, 2, scored=()))
    averaged, records = run_rounds(pfl.make_algorithm("fedavg"), federation, 2, scored=())
    local, _ = run_rounds(pfl.make_algorithm("local"), federation, 2, scored=())
    assert_close(state.server, averaged[-1].server, "server")
    assert_close(state.own, local[-1].models, "own models")
    np.testing.assert_array_equal(state.alphas, 1)
    losses = (each["clients"]["train_loss"] for each in (record, records[-1]))
    np.testing.assert_allclose(*losses, 1e-9)


@pytest.mark.costly
def test_private_running_statistics():
    """With one client this changes nothing but where they are; a new one gets their mean."""
    ours, sizes = algorithm(form="logits"), ((6,), (3,))
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


@pytest.mark.costly
@pytest.mark.parametrize("leaves", ["head", "body"])
def test_adaptation_of_a_part_of_both_models(leaves):
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


def test_prepare_twice():
    ours = algorithm(form="logits")
    once = ours.prepare(toy_federation())
    assert ours.prepare(once).network is once.network
