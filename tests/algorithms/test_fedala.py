"""FedALA against its reference: windows, weights, who adapts; extra losses and statistics."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import FourLayers, dense, maker, stack
from tests.algorithms.norms import ConvNorm
from tests.references import fedala

algorithm = maker("fedala")


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
            clients.append(parts)
        rounds.append(clients)
    return rounds


def adaptation(one):
    top = ("hidden_c", "head") if one.variant == "drawn-two-layers" else ("head",)
    batches = window_batches(one.case, one.settings.get("percent", 80))
    return {"adaptation_batches": batches, "top": top}


def check_adaptation(now):
    top = now.compared.options["top"]
    weights = {name: now.state.weights["params"][name] for name in top}
    assert_close(weights, stack(now.wanted["weights"])["params"], f"round {now.t}: weights")
    windows = [sum(map(len, batches)) for batches in now.batches("adaptation_batches")]
    passed = np.array(windows) * now.wanted["passes"]
    np.testing.assert_array_equal(now.clients["forward_samples"], passed)
    drawn = now.settings.get("participants") == "sampled"
    now.assert_copies(now.present, now.present if drawn else 1)
    assert now.record["down"].dtype == now.record["up"].dtype


def check_end(one):
    assert set(one.states[0].weights["params"]) == {*one.case.initial()}
    assert any(np.ptp(own["head"]["kernel"]) > 0.1 for own in one.wanted[-1]["weights"])
    assert max(max(models["passes"]) for models in one.wanted) > 10


test_reference, test_contract = comparison(
    "fedala",
    fedala.run,
    variants={
        "everyone": {"weight_rate": 0.7},
        "drawn-two-layers": Variant(
            {
                "participants": "sampled",
                "layers": 2,
                "percent": 50,
                "weight_rate": 3.0,
                "threshold": 0.02,
            },
            options={"model": FourLayers()},
        ),
    },
    ours=("layers", "percent"),
    given=adaptation,
    states={"server": "global", "models": "personalized", "trained": "trained"},
    scores={"global": "global", "personalized": "personalized", "last_trained": "trained"},
    clients={"adaptation_passes": "passes"},
    copies=None,
    check=check_adaptation,
    finish=check_end,
)


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


class Noisy(nn.Module):
    """In training its logits are drawn; overflows on inputs beyond 1e20."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        logits = dense(3, "head")(jnp.where(jnp.abs(x) > 1e20, jnp.inf, x))
        if not train:
            return logits
        return logits + jax.random.normal(self.make_rng("dropout"), logits.shape)


@pytest.mark.costly
def test_number_of_adaptation_passes():
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


@pytest.mark.costly
def test_extra_loss_of_adaptation():
    ours, ends = algorithm(weight_rate=0.1, max_passes=1), []
    adapt = adapting(ours)
    for weight in (0.0, 1.0):
        federation = toy_federation((4, 3), model=TanhNetwork(), extra_loss=Tilt(weight))
        state, after, _ = adapt(ours.prepare(federation))
        ends.append(after.weights["params"]["head"]["kernel"])
    server, own = (m["params"]["head"]["kernel"] for m in (state.server, state.models))
    assert_close(ends[0] - ends[1], 0.1 * (server - own), "weights")


@pytest.mark.costly
def test_window_does_not_depend_on_batch_order():
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


@pytest.mark.costly
def test_diverged_clients_keep_what_they_had_before_they_adapted():
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


@pytest.mark.costly
@pytest.mark.parametrize("policy", ["affine_shared", "shared"])
def test_running_statistics_follow_the_policy(policy):
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
