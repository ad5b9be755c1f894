"""FedDBE against its reference, the round before the first, and its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.feddbe import FedDBE
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over, stack
from tests.engine.finals import final_in
from tests.references import feddbe
from tests.references.network import add

VARIANTS = {"default": {}, "running": {"mu": 0.4, "kappa": 3.0}}


def algorithm(**settings):
    return pfl.make_algorithm("feddbe", settings)


def shifted(model):
    """The network of one head that gives the same logits as a model and its bias."""
    head, bias = model["head"], model["memory"]["bias"]
    more = {"head": {"kernel": np.zeros_like(head["kernel"]), "bias": bias @ head["kernel"]}}
    return {"hidden": model["hidden"], **add({"head": head}, more)}


@over(PATTERNS, [("partial-map", "running"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    common = case.common()
    first = case.batches("preliminary", starts=case.everyone)[0]
    consensus, wanted = feddbe.run(
        case.initial(), case.clients(), 3, **common, first_batches=first, **settings
    )
    states, records = case.run_rounds(algorithm(**settings))
    ones = np.ones((case.num_clients, 1), int)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.consensus, consensus, "consensus")
        assert_close(state.server["params"], {**models["global"], "bias_memory": []}, "global")
        bias = np.stack([model["memory"]["bias"] for model in models["personalized"]])
        assert_close(state.private["params"]["bias_memory"], bias, "bias")
        assert_losses(record, case, "personalized", list(map(shifted, models["personalized"])))
        steps = record["clients"]["local_steps"]
        if t == 0:
            record["clients"]["local_steps"] = steps - [len(own) for own in first]
        assert_steps(record, case.cohorts[t], common["batches"][t])
        present = case.present(t)[:, None]
        np.testing.assert_array_equal(record["up"], np.repeat(present, 3, axis=1))
        np.testing.assert_array_equal(record["down"], np.repeat(present + ones * (t == 0), 3, 1))
        for name in ("numbers_up", "numbers_down"):
            np.testing.assert_array_equal(record["clients"][name], 5 * ones[:, 0] * (t == 0))
        share = present[:, 0] * case.sizes
        np.testing.assert_allclose(record["matrices"]["mixing"], [share / share.sum()], 1e-9)
    if pattern == "full-vmap":
        prepared = algorithm().prepare(case.federation)
        most = sum(len(own) for own in (*first, *(b for each in common["batches"] for b in each)))
        assert algorithm().max_gradients(prepared, 3).sum() == most
    if pattern == "partial-map":
        assert_new_clients(case, states, consensus, settings)


def assert_new_clients(case, states, consensus, settings):
    """They train for a round from the server's model, without a bias at first."""
    final = final_in(states[-1], algorithm(**settings), case.federation, case.rounds)
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))["params"]
    params = states[-1].server["params"]
    start = {name: jax.tree.map(np.asarray, params[name]) for name in ("hidden", "head")}
    start["memory"] = {"bias": np.zeros(5)}
    options = (case.rates[-1], consensus, settings["kappa"], settings["mu"])
    batches = case.batches("personalize", starts=case.everyone)[-1]
    wanted = stack([feddbe.train(start, own, case.x, case.y, *options)[0] for own in batches])
    wanted = wanted["params"]
    assert_close(made.pop("bias_memory"), wanted.pop("memory")["bias"], "bias of new clients")
    assert_close(made, wanted, "new clients")


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"diverging": 3}, {"stragglers": {3: 1}}], ids=str)
def test_the_consensus_leaves_out_who_diverges_or_is_late(options):
    case = Case(rounds=1, **options)
    first = case.batches("preliminary", starts=case.everyone)[0]
    first[3], sizes = [], case.sizes * (np.arange(5) != 3)
    common = case.common(cohorts=[[]], sizes=sizes)
    consensus, _ = feddbe.run(case.initial(), case.clients(), 1, **common, first_batches=first)
    states, (record,) = case.run_rounds(algorithm())
    assert_close(states[-1].consensus, consensus, "consensus")
    if "stragglers" in options:
        assert not any(record["clients"][k][3] for k in ("numbers_up", "numbers_down"))


@pytest.mark.thorough
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
    features, valid = jnp.asarray([[1.0, 2], [3, 6], [9, 9]]), jnp.asarray([True, True, False])
    one, mean = FedDBE(mu=0.25), jnp.asarray([4.0, 8])
    np.testing.assert_allclose(one.running(mean, features, valid), [3.5, 7])
    np.testing.assert_allclose(one.running(mean, features, valid & False), mean)


def test_sums_of_sampled_cohorts_are_refused():
    options = {"secure_bits": 32, "model": TanhNetwork()}
    pfl.Simulation(algorithm(), toy_federation(**options)).check()
    with pytest.raises(pfl.InputError, match="feddbe averages the features of all clients"):
        pfl.Simulation(algorithm(), toy_federation(**options, participation=0.6)).check()
