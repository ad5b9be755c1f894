"""pFedMe against its reference, and its inner steps."""

from functools import partial
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, assert_models, assert_steps
from tests.algorithms.newcomers import personalized
from tests.algorithms.noisy import Noisy, batches_of_a_step
from tests.references import pfedme


def algorithm(**settings):
    return pfl.make_algorithm("pfedme", settings)


def largest(one, other):
    return max(abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))


def personal_rates(one):
    return {"personal_rate": [one.settings["personal_rate"]] * one.case.rounds}


def check(now):
    everyone = now.compared.algorithm.participants == "all"
    trained = range(now.case.num_clients) if everyone else now.cohort
    assert_steps(now.record, trained, *[now.batches()] * now.compared.algorithm.inner_steps)
    down = np.isin(range(now.case.num_clients), trained)
    for copies, who in ((now.record["up"], now.present), (now.record["down"], down)):
        np.testing.assert_array_equal(copies, np.repeat(who[:, None], 2, axis=1))
    now.assert_mean()
    # Public codes' personal models are aliases of w_i, or of the model that was received.
    received = now.compared.wanted[now.t - 1]["global"]
    for i in trained:
        if not len(now.batches()[i]):
            continue
        theta = jax.tree.map(lambda leaf, i=i: leaf[i], now.state.personal["params"])
        for other in (now.wanted["trained"][i], now.wanted["global"], received):
            assert largest(theta, jax.tree.map(np.asarray, other)) > 1e-5


test_reference, test_contract = comparison(
    "pfedme",
    pfedme.run,
    settings={"proximal_weight": 4.0, "personal_rate": 0.1, "server_rate": 0.7, "decay": 0.2},
    variants={
        "all": {},
        "uniform": {"inner_steps": 2, "weighting": "uniform"},
        "drawn": {"inner_steps": 2, "participants": "sampled"},
    },
    given=personal_rates,
    states={"server": "global", "personal": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
    steps=(),
    copies=None,
    check=check,
)


@pytest.mark.costly
def test_new_clients_of_pfedme():
    """They do one round's local work."""
    case = Case(1, scored=False)
    setting = case.setting(initial=case.initial("server"), batches=case.batches("personalize"))
    (wanted,) = pfedme.run(setting, proximal_weight=4.0, inner_steps=2, personal_rate=[0.09])
    made = personalized(algorithm(proximal_weight=4.0, inner_steps=2), case)
    assert_models(made, wanted["personalized"], "new clients")


@pytest.mark.costly
def test_statistics_momentum_and_noise_of_inner_steps():
    """One minibatch by hand: each inner step draws anew; theta's statistics travel."""
    federation = toy_federation(
        (6,), (3,), model=Noisy(), batch_size=6, local_steps=1, momentum=0.5
    )
    settings = {"proximal_weight": 4.0, "inner_steps": 2, "personal_rate": 0.1, "decay": 0.2}
    (start, end), (record,) = run_rounds(algorithm(**settings), federation, 1, scored=())
    (batch,), rng = batches_of_a_step(federation)

    def loss(params, model, k):
        noise = jax.random.fold_in(rng, k)
        return federation.task.loss({**model, "params": params}, batch, noise)

    @jax.jit
    def by_hand(w):
        theta, velocity, total = w, jax.tree.map(jnp.zeros_like, w["params"]), 0
        for k in range(2):
            value_and_grad = jax.value_and_grad(loss, has_aux=True)
            (found, after), g = value_and_grad(theta["params"], theta, k)
            total += found
            g = jax.tree.map(
                lambda g, p, w: g + 4 * (p - w) + 0.2 * p, g, theta["params"], w["params"]
            )
            velocity = jax.tree.map(lambda v, g: 0.5 * v + g, velocity, g)
            params = jax.tree.map(lambda p, v: p - 0.1 * v, theta["params"], velocity)
            theta = {**after, "params": params}
        moved = jax.tree.map(lambda w, p: w - 0.3 * 4 * (w - p), w["params"], theta["params"])
        return theta, {**theta, "params": moved}, total / 2

    theta, w, mean_loss = by_hand(start.server)
    np.testing.assert_allclose(record["clients"]["train_loss"], [mean_loss], 1e-9)
    assert_close(jax.tree.map(lambda leaf: leaf[0], end.personal), theta, "theta")
    assert_close(end.server, w, "w")
    assert largest(end.server["batch_stats"], start.server["batch_stats"]) > 1e-3


def test_each_inner_step_draws_anew():
    begin, key = pfl.Broadcast({"params": jnp.zeros(2)}), jax.random.key(0)
    ctx = mock.MagicMock()
    ctx.run_clients.return_value.carry = (None, None, None)
    inner = ctx.sgd_step.return_value
    inner.side_effect = lambda theta, *_: theta
    algorithm(inner_steps=3).local_update(ctx, None, begin)
    (step, *_), _ = ctx.run_clients.call_args
    client = mock.Mock(repeat=partial(jax.lax.fori_loop, 0))
    with jax.disable_jit():
        step((begin, begin.model["params"]), None, key, None, client)
    drawn = [jax.random.key_data(call.args[2]).tolist() for call in inner.call_args_list]
    assert drawn == [jax.random.key_data(jax.random.fold_in(key, k)).tolist() for k in range(3)]


@pytest.mark.costly
def test_private_statistics_in_pfedme():
    """With one client this changes nothing but where they are."""
    ours = algorithm()
    federation, apart = (
        toy_federation((6,), (3,), model=Noisy(), batch_norm=norms)
        for norms in ("shared", "affine_shared")
    )
    together, private = (states_of(ours, fed, 2)[-1] for fed in (federation, apart))
    assert_close(private.server["params"], together.server["params"], "server", 1e-12)
    assert_close(private.personal, together.personal, "personal", 1e-12)
    held = jax.tree.map(lambda leaf: leaf[0], private.private["batch_stats"])
    assert_close(held, together.server["batch_stats"], "statistics", 1e-12)
    result = pfl.simulate(ours, apart, 1)
    assert "global/test/loss" not in result.scores


def test_remarks_of_pfedme():
    sampled = toy_federation(participation=0.6)
    told = ["all clients train in every round, drawn or not"]
    assert algorithm().remarks(sampled) == told
    assert (
        algorithm(participants="sampled").remarks(sampled)
        == algorithm().remarks(toy_federation())
        == []
    )
