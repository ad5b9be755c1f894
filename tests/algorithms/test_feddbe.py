"""FedDBE against its reference, and the round before the first."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.feddbe import FedDBE
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, assert_steps, maker, network_loss, stack
from tests.references import feddbe
from tests.references.network import add

algorithm = maker("feddbe")


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
    first, taken = int(now.t == 0), now.clients["local_steps"]
    if first:
        taken = taken - [len(own) for own in now.compared.options["first_batches"]]
    assert_steps({"clients": {"local_steps": taken}}, now.cohort, now.batches())
    now.assert_copies(now.present, now.present + first)
    for name in ("numbers_up", "numbers_down"):
        np.testing.assert_array_equal(now.clients[name], np.full(now.case.num_clients, 5 * first))
    now.assert_mean()


def check_new_clients(one, made):
    """They train for a round from the server's model, without a bias at first."""
    params, (batches, given) = one.states[-1].server["params"], one.newcomers()
    start = {"hidden": params["hidden"], "head": params["head"], "memory": {"bias": np.zeros(5)}}
    given = *given, one.wanted[-1]["consensus"], one.algorithm.kappa, one.algorithm.mu
    wanted = stack([feddbe.train(start, own, *given)[0] for own in batches])["params"]
    made = dict(made["params"])
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
    copies=None,
    check=check_costs,
    new_clients=check_new_clients,
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
