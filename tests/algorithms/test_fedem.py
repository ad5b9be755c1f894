"""FedEM against its reference, what clients predict, and new clients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.algorithms.fedem import Learners
from fedjax_pfl.models.task import as_task
from fedjax_pfl.testing.toys import OverflowingNormed, assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import Case, maker, sampled_federation, unstack
from tests.references import fedem

COUNT = 2  # learners


algorithm = maker("fedem")


def learners_of(params):
    """The learners of one model by the reference's names."""
    return unstack({name: layer for name, layer in params.items() if name != "mixture"})


def first_learners(one):
    initial = learners_of(one.states[0].server["params"])
    assert_close(initial[0], one.case.initial(), "learner 0", 0)
    assert len({float(learner["head"]["kernel"].sum()) for learner in initial}) == COUNT
    return {"initial": initial}


def run(s):
    """The reference, with the clients' mixtures."""
    history = fedem.run(s)
    for models in history:
        models["mixtures"] = [(models["learners"], own) for own in models["weights"]]
    return history


def check_passes(now):
    # Each learner once for the weights, and on minibatches of 4.
    passes = COUNT * (4 * now.clients["local_steps"] + now.present * now.case.sizes)
    np.testing.assert_array_equal(now.clients["forward_samples"], passes)


def check_weights(one):
    assert np.ptp(one.wanted[-1]["weights"], axis=0).max() > 0.05


def check_new_clients(one, made):
    """They learn weights of the server's learners, from equal ones, and train nothing."""
    case, made = one.case, made["params"]
    server = learners_of(one.states[-1].server["params"])
    for i in range(case.num_clients):
        own, weights = case.samples(i), np.full(COUNT, 1 / COUNT)
        for _ in range(one.algorithm.new_client_passes):
            weights = fedem.posterior(server, weights, case.x[own], case.y[own]).mean(axis=1)
        np.testing.assert_allclose(made["mixture"][i], weights, 1e-9)
        found = learners_of(jax.tree.map(lambda leaf, i=i: leaf[i], made))
        assert all(map(np.array_equal, *map(jax.tree.leaves, (found, server))))


test_reference, test_contract = comparison(
    "fedem",
    run,
    settings={"learners": COUNT, "new_client_passes": 3},
    ours=("learners", "new_client_passes"),
    given=first_learners,
    states={"server": "learners", "private.params.mixture": "weights"},
    scores={"personalized": "mixtures"},
    loss=lambda mixture, x, y: fedem.loss(*mixture, x, y),
    check=check_passes,
    finish=check_weights,
    new_clients=check_new_clients,
)


@pytest.mark.costly
def test_weights_do_not_decay_and_stay_with_clients():
    federation = sampled_federation(weight_decay=0.3, momentum=0.5)
    weights = states_of(algorithm(learners=2), federation, 2)[-1].private["params"]["mixture"]
    np.testing.assert_allclose(weights.sum(axis=1), 1, 1e-12)


@pytest.mark.costly
def test_an_e_step_is_over_all_samples_as_they_are():
    """Also with fewer local steps, incomplete batches left out and augmentation; not if late."""
    options = {"local_steps": 1, "drop_last": True, "augment": lambda key, x: x + 1}
    case = Case(rounds=1, scored=False, stragglers={1: 1}, **options)
    (before, after), (record,) = case.run_rounds(algorithm())
    initial = learners_of(before.server["params"])
    mixtures = after.private["params"]["mixture"]
    present = case.present(0)
    assert present.sum() == 4
    np.testing.assert_array_equal(mixtures[~present], 1 / 3)
    passes = 3 * (4 * record["clients"]["local_steps"] + case.sizes * present)
    np.testing.assert_array_equal(record["clients"]["forward_samples"], passes)
    for i in case.cohorts[0]:
        own, weights = case.samples(i), mixtures[i]
        q = fedem.posterior(initial, np.full(3, 1 / 3), case.x[own], case.y[own])
        np.testing.assert_allclose(weights, q.mean(axis=1), 1e-9)


class Noisy(nn.Module):
    """A network with running statistics and dropout."""

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dense(3, name="head")(nn.Dropout(0.5, deterministic=not train)(x))


@pytest.mark.costly
def test_learners_of_a_network_with_statistics_and_dropout():
    task = Learners(as_task(Noisy()), count=2)
    rng = np.random.default_rng(0)
    x, y, valid = rng.normal(size=(6, 5)), rng.integers(0, 3, 6), jnp.ones(6, bool)
    batch = pfl.training.Batch(jnp.asarray(x), jnp.asarray(y), valid)
    model = task.initial_model(jax.random.key(0), batch.inputs)
    first = jax.tree.map(lambda leaf: leaf[0], model)
    twins = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), first)
    twins["params"]["mixture"] = jnp.array([0.3, 0.7])
    # Twins differ in what is dropped; the posterior is of evaluation, in which they do not.
    out, statistics = task.each(twins, batch.inputs, True, jax.random.key(1), valid)
    assert not np.allclose(out[0], out[1])
    q = task.posterior(twins, batch)
    np.testing.assert_allclose(q, np.repeat([[0.3], [0.7]], 6, axis=1), 1e-6)
    moved = jax.tree.leaves(statistics)
    assert all(
        (new != old).any()
        for new, old in zip(moved, jax.tree.leaves(twins["batch_stats"]), strict=True)
    )
    # Adaptation trains on the mixture, and its weights stay what they are up to their sum.
    slopes = jax.grad(
        lambda params: task.loss({**twins, "params": params}, batch, jax.random.key(2))[0]
    )(twins["params"])
    assert not slopes["mixture"].any() and slopes["head"]["kernel"].any()
    shrunk = {**twins, "params": {**twins["params"], "mixture": twins["params"]["mixture"] / 2}}
    assert_close(task.predict(shrunk, batch.inputs), task.predict(twins, batch.inputs), "", 1e-6)


@pytest.mark.costly
def test_statistics_are_averaged_and_clients_without_samples_keep_their_weights():
    federation = toy_federation((9, 0, 6), model=OverflowingNormed(3, (5,)))
    before, after = states_of(algorithm(), federation, 1)
    moved = [jax.tree.leaves(state.server["batch_stats"]) for state in (before, after)]
    assert all((new != old).any(axis=-1).all() for old, new in zip(*moved, strict=True))
    weights = after.private["params"]["mixture"]
    np.testing.assert_array_equal(weights[1], 1 / 3)
    assert (weights[::2] != 1 / 3).all()


@pytest.mark.costly
def test_an_initial_model_of_every_parameter_is_refused():
    federation = toy_federation()
    model = federation.initial_model(jax.random.key(0))
    known = toy_federation(initial_model=model)
    with pytest.raises(pfl.InputError, match="fedem begins with different learners"):
        pfl.Simulation(algorithm(), known).check()
    pfl.Simulation(algorithm(learners=1), known).check()
