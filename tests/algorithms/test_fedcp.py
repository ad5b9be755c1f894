"""FedCP against its reference, what is scored, and the heads that it takes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.batching import client_key
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import PATTERNS, Case, assert_steps, over
from tests.engine.finals import final_in
from tests.references import fedcp
from tests.references.network import cross_entropy

VARIANTS = {"default": {}, "far": {"weight": 200.0}}


def algorithm(**settings):
    return pfl.make_algorithm("fedcp", settings)


def noises_of(case, batches, purpose="train"):
    """The policy's noise in each step, as the library draws it: [t][i][k] [n, 2, 5]."""

    def of_step(key, k, count):
        rng = jax.random.fold_in(jax.random.fold_in(key, k), 7)
        size = case.federation.schedule.batch_size
        return np.asarray(jax.random.gumbel(rng, (size, 2, 5), jnp.float64))[:count]

    drawn = []
    for t, of_round in enumerate(batches):
        key = keys.of_round(case.key, purpose, t)
        steps = [client_key(key, int(i))[1] for i in case.federation.data.ids]
        drawn.append(
            [
                [of_step(steps[i], k, len(batch)) for k, batch in enumerate(own)]
                for i, own in enumerate(of_round)
            ]
        )
    return drawn


def named(params):
    """One model of the library by the reference's names."""
    params = jax.tree.map(np.asarray, dict(params))
    return {**params, "context": {"v": params["context"]}}


def first_model(states):
    shared = {k: v for k, v in states[0].server["params"].items() if v is not None}
    return jax.tree.map(np.asarray, {k: v for k, v in shared.items() if k not in fedcp.PRIVATE})


@over(PATTERNS, [("partial-map", "far"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    settings, decay = VARIANTS[variant], 0.1 if variant == "far" else 0.0
    case = Case(**PATTERNS[pattern], weight_decay=decay)
    common = case.common(decay=decay)
    states, records = case.run_rounds(algorithm(**settings))
    initial, noises = first_model(states), noises_of(case, common["batches"])
    assert_close({k: initial[k] for k in ("head", "hidden")}, case.initial(), "the network's", 0)
    wanted = fedcp.run(initial, case.clients(), 3, **common, noises=noises, **settings)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        for name, layer in models["global"].items():
            assert_close(state.server["params"][name], layer, f"{name} in round {t}")
        for i, model in enumerate(models["personalized"]):
            own = jax.tree.map(lambda leaf, i=i: leaf[i], state.private["params"])
            assert_close(own["personal_head"], model["personal_head"], f"head of {i}")
            assert_close(own["context"], model["context"]["v"], f"context of {i}")
        assert_steps(record, case.cohorts[t], common["batches"][t])
        frozen = 4 * record["clients"]["local_steps"]  # a network, minibatches of 4
        np.testing.assert_array_equal(record["clients"]["forward_samples"], frozen)
        if case.scored:
            losses = [
                cross_entropy(fedcp.logits(model, case.x[at]), case.y[at])[0] if len(at) else np.nan
                for i, model in enumerate(models["personalized"])
                for at in [case.samples(i, "test")]
            ]
            np.testing.assert_allclose(record["scores"]["personalized/test/loss"], losses, 1e-9)
        share = case.present(t) * case.sizes
        np.testing.assert_allclose(record["matrices"]["mixing"], [share / share.sum()], 1e-9)
    if pattern == "partial-map":
        assert_new_clients(case, states, settings, decay)


def assert_new_clients(case, states, settings, decay):
    """They train a personal head for a round, from the global one, which stays."""
    final = final_in(states[-1], algorithm(**settings), case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))["params"]
    server = {k: v for k, v in states[-1].server["params"].items() if k not in fedcp.PRIVATE}
    server = jax.tree.map(np.asarray, server)
    context = {"v": fedcp.unit(server["head"])}
    start = {**server, "personal_head": server["head"], "context": context}
    batches = case.batches("personalize", starts=case.everyone)
    noises = noises_of(case, batches, "personalize")[-1]
    for i, own in enumerate(batches[-1]):
        options = (case.x, case.y, case.rates[-1], settings["weight"], decay)
        wanted = fedcp.train(start, own, noises[i], *options)
        ours = named(jax.tree.map(lambda leaf, i=i: leaf[i], made))
        wanted = {**wanted, "context": {"v": fedcp.unit(wanted["personal_head"])}}
        for name, layer in wanted.items():
            assert_close(ours[name], layer, f"{name} of new client {i}")


def test_what_stays_and_what_is_sent():
    federation = algorithm().prepare(toy_federation())
    sizes = dict(zip(federation.plan.blocks, federation.plan.shared_block_sizes(), strict=True))
    assert sizes["personal_head"] == sizes["context"] == 0
    policy = federation.initial_model(jax.random.key(0))["params"]["policy"]
    np.testing.assert_array_equal(policy["scale"], 1)
    np.testing.assert_array_equal(policy["offset"], 0)
    assert sizes["policy"] == 5 * 10 + 3 * 10 and sizes["head"] == 18


@pytest.mark.thorough
def test_weight_decay_and_momentum_leave_the_global_head_to_the_server():
    federation = toy_federation(momentum=0.5, weight_decay=0.1, participation=0.2)
    before, after = states_of(algorithm(), federation, 1)
    (member,) = np.flatnonzero(
        (before.private["params"]["context"] != after.private["params"]["context"]).any(axis=1)
    )
    mine = jax.tree.map(lambda leaf: leaf[member], after.private["params"]["personal_head"])
    old = before.server["params"]["head"]
    wanted = jax.tree.map(lambda own, common: (own + common) / 2, mine, old)
    assert_close(after.server["params"]["head"], wanted, "the global head", 1e-12)


class Scaled(nn.Module):
    """A network whose head has no kernel [features, outputs]."""

    def setup(self):
        self.head = nn.LayerNorm()

    def features(self, x):
        return x[:, :3]

    def __call__(self, x):
        return self.head(self.features(x))


def test_heads_without_a_kernel_are_refused():
    with pytest.raises(pfl.InputError, match=r"fedcp sums a head's kernel \[3, outputs\]"):
        pfl.Simulation(algorithm(), toy_federation(model=Scaled())).check()
