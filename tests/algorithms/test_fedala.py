"""FedALA against its reference: windows, weights, who adapts; and its limits."""

from dataclasses import replace
from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    FourLayers,
    assert_losses,
    assert_models,
    assert_steps,
    dense,
    over,
    stack,
)
from tests.algorithms.norms import ConvNorm
from tests.engine.finals import final_in
from tests.references import fedala
from tests.references.local_sgd import sgd

# Settings, and the network and its upper layers.
VARIANTS = {
    "everyone": ({}, None, ("head",)),
    "drawn-two-layers": (
        {
            "participants": "sampled",
            "layers": 2,
            "percent": 50,
            "weight_rate": 3.0,
            "threshold": 0.02,
        },
        FourLayers,
        ("hidden_c", "head"),
    ),
}
QUICK = [("partial-map", "everyone"), ("full-vmap", "drawn-two-layers")]


def algorithm(**settings):
    return pfl.make_algorithm("fedala", settings)


@cache
def rounds_of(pattern, variant):
    settings, network, _ = VARIANTS[variant]
    case = Case(model=network and network(), **PATTERNS[pattern])
    return case, *case.run_rounds(algorithm(**settings))


def window_batches(case, percent):
    """[t][i]: one pass over the window that client i draws in round t."""
    schedule, rounds = case.federation.schedule, []
    for t in range(case.rounds):
        key, clients = keys.of_round(case.key, "window", t), []
        for i in range(case.num_clients):
            samples = case.samples(i)
            last = len(samples) - max(1, int(percent / 100 * len(samples)))
            own = jax.random.fold_in(key, int(case.federation.data.ids[i]))
            window = fedala.window(
                samples, percent, int(jax.random.randint(own, (), 0, last + 1, jnp.int32))
            )
            parts = np.split(window, range(schedule.batch_size, len(window), schedule.batch_size))
            whole = [len(p) == schedule.batch_size or not schedule.drop_last for p in parts]
            clients.append([p for p, fits in zip(parts, whole, strict=True) if fits])
        rounds.append(clients)
    return rounds


def reference(case, settings, top):
    names = ("weight_rate", "threshold", "max_passes", "participants")
    return fedala.run(
        case.initial(),
        case.clients(),
        case.rounds,
        **case.common(),
        adaptation_batches=window_batches(case, settings.get("percent", 80)),
        top=top,
        **{name: settings[name] for name in names if name in settings},
    )


@over(PATTERNS, QUICK, VARIANTS)
def test_reference(pattern, variant):
    case, states, records = rounds_of(pattern, variant)
    settings, _, top = VARIANTS[variant]
    wanted, batches = reference(case, settings, top), case.batches()
    assert set(states[0].weights["params"]) == {*case.initial()}
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], f"round {t}: global")
        assert_models(state.models, models["personalized"], f"round {t}: personalized")
        assert_models(state.trained, models["trained"], f"round {t}: trained")
        weights = {name: state.weights["params"][name] for name in top}
        assert_close(weights, stack(models["weights"])["params"], f"round {t}: weights")
        np.testing.assert_array_equal(record["clients"]["adaptation_passes"], models["passes"])
        for name in ("personalized", "trained"):
            assert_losses(record, case, name, models[name])
        assert_losses(record, case, "global", [models["global"]] * case.num_clients)
        assert_steps(record, case.cohorts[t], batches[t])
        present = case.present(t)[:, None]
        assert (record["up"] == present).all()
        received = present if "drawn" in variant else np.ones_like(present)
        assert (record["down"] == received).all()
        assert record["down"].dtype == record["up"].dtype
    assert any(np.ptp(own["head"]["kernel"]) > 0.1 for own in wanted[-1]["weights"])
    assert max(max(models["passes"]) for models in wanted) > 10


@pytest.mark.parametrize(
    "pattern", ["partial-map", pytest.param("full-map-drop", marks=pytest.mark.slow)]
)
def test_forward_passes_of_adaptation_are_counted(pattern):
    case, _, records = rounds_of(pattern, "everyone")
    batches = window_batches(case, 80)
    for record, own in zip(records, batches, strict=True):
        sizes = np.array([sum(map(len, client)) for client in own])
        wanted = sizes * record["clients"]["adaptation_passes"]
        np.testing.assert_array_equal(record["clients"]["forward_samples"], wanted)


def first_context(federation, t=0):
    key, t = jax.random.key(0), jnp.int32(t)
    cohort = federation.participation.cohort(key, t, federation.data.ids)
    return pfl.Context(federation, key, t, jnp.int32(2), cohort)


def round_of(ours, federation):
    """(a compiled round, (state, t) -> state; the first state)."""
    step = jax.jit(lambda state, t: ours.round(first_context(federation, t), state)[0])
    return step, ours.init(first_context(federation))


def adapting(ours):
    """A compiled adaptation to 1.1 times the first model, from weights of one half."""

    @jax.jit
    def adapt(federation):
        ctx = first_context(federation)
        state = ours.init(ctx)
        state = replace(
            state,
            server=jax.tree.map(lambda leaf: 1.1 * leaf, state.server),
            weights=jax.tree.map(lambda leaf: 0.5 * leaf, state.weights),
        )
        return state, *ours.adapt(ctx, state, state.models, ctx.cohort)

    return adapt


def products(jaxpr):
    """Number of matrix products in a program's text, those of loops once."""
    inner = [value for eqn in jaxpr.eqns for value in jax.tree.leaves(list(eqn.params.values()))]
    inner = [getattr(value, "jaxpr", value) for value in inner]
    return sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns) + sum(
        products(value) for value in inner if hasattr(value, "eqns")
    )


@pytest.mark.parametrize(("layers", "count"), [(1, 4 + 1), (2, 4 + 3), (4, 4 + 7)])
def test_no_backward_pass_below_the_upper_layers(layers, count):
    """Four products forward; for each upper layer one by its weights, and one to the next."""
    ours = algorithm(layers=layers)
    federation = ours.prepare(toy_federation(model=FourLayers()))
    begun = jax.make_jaxpr(lambda fed: ours.init(first_context(fed)))(federation)
    whole = jax.make_jaxpr(adapting(ours))(federation)
    assert products(whole.jaxpr) - products(begun.jaxpr) == count


class Noisy(nn.Module):
    """In training its logits are drawn; overflows on inputs beyond 1e20."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        logits = dense(3, "head")(jnp.where(jnp.abs(x) > 1e20, jnp.inf, x))
        if not train:
            return logits
        return logits + jax.random.normal(self.make_rng("dropout"), logits.shape)


def test_who_takes_passes_and_how_many():
    """Each pass draws anew, so losses never settle; what diverged, is late or has no sample stops.

    That is clients 1, 3 and 2.
    """
    ours = algorithm(participants="sampled", weight_rate=0, threshold=0.01, max_passes=12)
    federation = toy_federation((7, 5, 0, 10, 4), model=Noisy(), diverging=1, stragglers={3: 1})
    _, after, passes = adapting(ours)(ours.prepare(federation))
    assert passes.tolist() == [12, 1, 0, 0, 12]
    assert after.begun.tolist() == [True, True, True, False, True]


@pfl.core.struct
class Tilt(pfl.training.ExtraLoss):
    """A slope of the head."""

    weight: float = 1.0

    def __call__(self, params, batch, client, plan):
        return self.weight * jnp.sum(params["head"]["kernel"])


def test_extra_losses_are_part_of_what_weights_learn():
    ours, ends = algorithm(weight_rate=0.1, max_passes=1), []
    adapt = adapting(ours)
    for weight in (0.0, 1.0):
        federation = toy_federation((4, 3), model=TanhNetwork(), extra_loss=Tilt(weight))
        state, after, _ = adapt(ours.prepare(federation))
        ends.append(after.weights["params"]["head"]["kernel"])
    server, own = (m["params"]["head"]["kernel"] for m in (state.server, state.models))
    assert_close(ends[0] - ends[1], 0.1 * (server - own), "weights")


def test_weights_are_learned_on_the_same_samples_in_every_batch_order():
    ours = algorithm(max_passes=1)
    shuffled, poisson = (
        adapting(ours)(ours.prepare(toy_federation((9, 4), batch_order=order)))[1].weights
        for order in ("shuffled", "poisson")
    )
    jax.tree.map(np.testing.assert_array_equal, shuffled, poisson)


def test_running_statistics_have_no_weights():
    ours = algorithm(layers=2)
    federation = ours.prepare(toy_federation(model=ConvNorm()))
    weights = jax.eval_shape(lambda: ours.init(first_context(federation))).weights
    assert set(weights["params"]) == {"conv", "bn", "head"}
    assert not jax.tree.leaves(weights["batch_stats"])


class Growing(nn.Module):
    """Without a nonlinearity, so that huge samples overflow after a few steps, not in the first."""

    @nn.compact
    def __call__(self, x):
        return dense(3, "head")(dense(5, "hidden")(x))


@pytest.mark.thorough
def test_a_member_that_diverges_keeps_what_it_had_before_it_adapted():
    """It learns weights on huge samples; its training overflows after a few steps."""
    ours = algorithm(participants="sampled", max_passes=1)
    sizes, training = (4, 5, 3), {"model": Growing(), "local_epochs": 8}
    federation = ours.prepare(toy_federation(sizes, diverging=1, **training))
    step, first = round_of(ours, federation)
    server = jax.tree.map(lambda leaf: 1.1 * leaf, first.server)
    before = replace(first, server=server)
    after = step(before, jnp.int32(0))
    assert after.begun.tolist() == [True, False, True]
    for name in ("models", "trained", "weights"):
        old, new = (jax.tree.leaves(getattr(state, name)) for state in (before, after))
        pairs = list(zip(map(np.asarray, old), map(np.asarray, new), strict=True))
        for was, now in pairs:
            np.testing.assert_array_equal(now[1], was[1], name)
        assert any((now[[0, 2]] != was[[0, 2]]).any() for was, now in pairs), name


@pytest.mark.thorough
@pytest.mark.parametrize("check", ["partial_participation", "divergence"])
def test_absent_and_diverged_clients_keep_all_where_the_drawn_adapt(check):
    CHECKS[check](algorithm(participants="sampled"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "policy", ["affine_shared", pytest.param("shared", marks=pytest.mark.slow)]
)
def test_running_statistics_are_the_servers_or_the_clients_own(policy):
    ours = algorithm(max_passes=1)
    federation = ours.prepare(toy_federation(model=ConvNorm(), batch_norm=policy))
    step, first = round_of(ours, federation)
    state = step(first, jnp.int32(0))
    statistics, trained = (models["batch_stats"]["bn"]["mean"]
                           for models in (state.models, state.trained))  # fmt: skip
    if policy == "affine_shared":
        np.testing.assert_array_equal(statistics, trained)
    else:
        server = state.server["batch_stats"]["bn"]["mean"]
        np.testing.assert_array_equal(statistics, np.broadcast_to(server, statistics.shape))
    for name in ("kernel", "bias"):  # below the head
        body, server = state.models["params"]["conv"][name], state.server["params"]["conv"][name]
        np.testing.assert_array_equal(body, np.broadcast_to(server, body.shape))


def test_new_clients_train_from_the_servers_model():
    case, states, _ = rounds_of("partial-map", "everyone")
    final = final_in(states[-1], algorithm(), case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    server = jax.tree.map(np.asarray, states[-1].server["params"])
    wanted = [sgd(server, own, case.x, case.y, case.rates[-1])
              for own in case.batches("personalize")[-1]]  # fmt: skip
    assert_close(made, stack(wanted), "new clients")


def test_a_table_says_that_absent_clients_adapt():
    sampled = toy_federation(participation=0.6)
    told = "all clients adapt in every round, drawn or not"
    assert algorithm().remarks(algorithm().prepare(sampled)) == [told]
    for ours, federation in (
        (algorithm(participants="sampled"), sampled),
        (algorithm(), toy_federation()),
    ):
        assert not ours.remarks(ours.prepare(federation))
