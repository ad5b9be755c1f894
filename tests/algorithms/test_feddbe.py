"""FedDBE against its reference, and the round before the first."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.feddbe import FedDBE
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, assert_steps, network_loss, stack
from tests.engine.finals import final_in
from tests.references import feddbe
from tests.references.network import add


def algorithm(**settings):
    return pfl.make_algorithm("feddbe", settings)


def shifted(model):
    """The network of one head that gives the same logits as a model and its bias."""
    head, bias = model["head"], model["memory"]["bias"]
    more = {"head": {"kernel": np.zeros_like(head["kernel"]), "bias": bias @ head["kernel"]}}
    return {"hidden": model["hidden"], **add({"head": head}, more)}


def run(s, **options):
    consensus, history = feddbe.run(s, **options)
    return [{**models, "consensus": consensus} for models in history]


def first_batches(one):
    return {"first_batches": one.case.batches("preliminary", starts=one.case.everyone)[0]}


def check_costs(now):
    """In the first round all clients also train for the consensus and send their means."""
    first, everyone = now.t == 0, np.ones((now.case.num_clients, 1), int)
    taken = now.clients["local_steps"]
    if first:
        taken = taken - [len(own) for own in now.compared.options["first_batches"]]
    assert_steps({"clients": {"local_steps": taken}}, now.cohort, now.batches())
    present = now.present[:, None]
    np.testing.assert_array_equal(now.record["up"], np.repeat(present, 3, axis=1))
    np.testing.assert_array_equal(now.record["down"], np.repeat(present + first * everyone, 3, 1))
    for name in ("numbers_up", "numbers_down"):
        np.testing.assert_array_equal(now.clients[name], 5 * first * everyone[:, 0])
    now.case.assert_mean(now.record, now.t)


def check_end(one):
    prepared = one.algorithm.prepare(one.case.federation)
    every = [one.options["first_batches"], *one.setting.batches]
    most = sum(len(own) for of_round in every for own in of_round)
    assert one.algorithm.max_gradients(prepared, one.case.rounds).sum() == most
    if one.pattern == "full-vmap":
        check_new_clients(one.case, one.states, one.algorithm, one.wanted[-1]["consensus"])


def check_new_clients(case, states, ours, consensus):
    """They train for a round from the server's model, without a bias at first."""
    final = final_in(states[-1], ours, case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))["params"]
    params = states[-1].server["params"]
    start = {name: jax.tree.map(np.asarray, params[name]) for name in ("hidden", "head")}
    start["memory"] = {"bias": np.zeros(5)}
    options = (case.rates[-1], consensus, ours.kappa, ours.mu)
    batches = case.batches("personalize", starts=case.everyone)[-1]
    wanted = stack([feddbe.train(start, own, case.x, case.y, *options)[0] for own in batches])
    wanted = wanted["params"]
    assert_close(made.pop("bias_memory"), wanted.pop("memory")["bias"], "bias of new clients")
    assert_close(made, wanted, "new clients")


test_reference, test_contract = comparison(
    "feddbe",
    run,
    settings={"mu": 0.4, "kappa": 3.0},
    given=first_batches,
    states={
        "consensus": "consensus",
        "server": "global",
        "private.params.bias_memory": "personalized.memory.bias",
    },
    scores={"personalized": "personalized"},
    loss=lambda model, x, y: network_loss(shifted(model), x, y),
    steps=(),
    copies=False,
    check=check_costs,
    finish=check_end,
)


@pytest.mark.costly
@pytest.mark.parametrize("options", [{"diverging": 3}, {"stragglers": {3: 1}}], ids=str)
def test_consensus_without_diverged_and_late_clients(options):
    case = Case(rounds=1, **options)
    other = np.asarray(case.federation.data.ids) == 3
    first = case.batches("preliminary", starts=case.everyone)[0]
    first = [[] if out else own for own, out in zip(first, other, strict=True)]
    setting = case.setting(cohorts=[[]], sizes=case.sizes * ~other)
    consensus, _ = feddbe.run(setting, first_batches=first)
    states, (record,) = case.run_rounds(algorithm())
    assert_close(states[-1].consensus, consensus, "consensus")
    if "stragglers" in options:
        assert not any(record["clients"][k][other] for k in ("numbers_up", "numbers_down"))


@pytest.mark.costly
def test_training_losses_are_means_over_steps():
    """With tiny steps they are those of FedAvg on the same minibatches."""
    federation = toy_federation(learning_rate=1e-9, validation_size=0, model=TanhNetwork())
    ours, fedavg = (
        run_rounds(pfl.make_algorithm(name), federation, 1, scored=())[1][0]["clients"]
        for name in ("feddbe", "fedavg")
    )
    assert len(set(fedavg["local_steps"])) > 1
    np.testing.assert_allclose(ours["train_loss"], fedavg["train_loss"], 1e-6)


def test_padding_and_empty_minibatches_leave_the_mean():
    features, valid = np.array([[1.0, 2], [3, 6], [9, 9]]), np.array([True, True, False])
    running, mean = jax.jit(FedDBE(mu=0.25).running), np.array([4.0, 8])
    np.testing.assert_allclose(running(mean, features, valid), [3.5, 7])
    np.testing.assert_allclose(running(mean, features, valid & False), mean)


def test_sums_of_sampled_cohorts_are_refused():
    options = {"secure_bits": 32, "model": TanhNetwork()}
    pfl.Simulation(algorithm(), toy_federation(**options)).check()
    with pytest.raises(pfl.InputError, match="feddbe averages the features of all clients"):
        pfl.Simulation(algorithm(), toy_federation(**options, participation=0.6)).check()
