"""FedProx against its reference, and its limits."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import trees
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, QUICK, Case, assert_steps, over, sampled_federation
from tests.references import fedprox


def algorithm(**settings):
    return pfl.make_algorithm("fedprox", settings)


@over(PATTERNS, QUICK)
def test_reference(pattern):
    """Both the loss and the term: tools have been seen to overwrite either by the other."""
    case = Case(**PATTERNS[pattern])
    common = case.common()
    wanted = fedprox.run(case.initial(), case.clients(), 3, **common, proximal_weight=0.7)
    states, records = case.run_rounds(algorithm(proximal_weight=0.7))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)


def test_slow_clients_train_some_of_their_epochs_and_count_as_all_do():
    case = Case(participation=0.8, local_epochs=3)
    common = case.common()
    states, records = case.run_rounds(algorithm(proximal_weight=0.7, slow_fraction=0.5))
    work = [record["clients"]["local_steps"].astype(int) for record in records]
    for taken, cohort, batches in zip(work, case.cohorts, common["batches"], strict=True):
        epochs = [3 * taken[i] / len(batches[i]) for i in cohort]
        assert len(epochs) == 4 and epochs.count(3) == 2 and set(epochs) <= {1, 2, 3}
    wanted = fedprox.run(
        case.initial(), case.clients(), 3, **common, proximal_weight=0.7, work=work
    )
    for state, models in zip(states[1:], wanted, strict=True):
        assert_close(state.server["params"], models["global"], "global")


def test_how_many_are_slow_and_how_slow():
    """Of the members present alone; halves are rounded to even, as the authors' code does."""
    order = np.array([8, 3, 0, 7, 2, 1, 4, 6, 5])
    here, there = (
        algorithm().prepare(toy_federation((4,) * 9, (2,) * 9, local_epochs=4, order=rows))
        for rows in (None, order)
    )

    def epochs(part, t, federation=here):
        ctx = pfl.Context(federation, jax.random.key(3), t, jnp.int32(1), None)
        cohort = replace(ctx.cohort_of(), mask=ctx.ids < 5)
        return replace(algorithm(), slow_fraction=part).epochs(replace(ctx, cohort=cohort))

    @jax.jit
    def often(part):
        return jax.vmap(lambda t: epochs(part, t))(jnp.arange(300))

    once, elsewhere = (jax.jit(partial(epochs, federation=one)) for one in (here, there))
    for t in range(3):  # whatever a client's row
        np.testing.assert_array_equal(elsewhere(0.5, t), once(0.5, t)[order])

    for part, count in ((0.1, 1), (0.3, 1), (0.5, 3), (0.7, 3), (1, 5)):
        drawn = np.asarray(often(part))
        slow = drawn < 4
        np.testing.assert_array_equal(slow[:, :5].sum(axis=1), count)
        shares = slow[:, :5].mean(axis=0)
        np.testing.assert_allclose(shares, count / 5, atol=0.12)
        apart = drawn[:, :5].max(axis=1, where=slow[:, :5], initial=0)
        apart = apart - drawn[:, :5].min(axis=1, where=slow[:, :5], initial=4)
        assert (apart > 0).any() == (count > 1)  # each draws its own number
        found, times = np.unique(drawn[:, :5][slow[:, :5]], return_counts=True)
        assert found.tolist() == [1, 2, 3]
        np.testing.assert_allclose(times / times.sum(), 1 / 3, atol=0.1)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.thorough)])
def test_without_the_term_it_is_fedavg_to_the_bit(dtype):
    federation = sampled_federation(dtype=dtype)
    states, records = run_rounds(algorithm(proximal_weight=0), federation)
    wanted, scored = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server", 0)
    for record, other in zip(records, scored, strict=True):
        assert_close(record["scores"], other["scores"], "scores", 0)


@pytest.mark.thorough
def test_the_term_holds_shared_layers_and_leaves_private_ones_free():
    federation = toy_federation((6,), (3,), share="body", batch_size=6, local_steps=2)
    start, end = states_of(algorithm(proximal_weight=0.7), federation, 1)
    every, eta = federation.data.train.index, 0.3
    samples = federation.data.samples[every].astype(float), federation.data.labels[every]
    batch = pfl.training.Batch(*samples, jnp.ones(6, bool))
    slope = jax.grad(lambda params: federation.task.loss({"params": params}, batch)[0])

    def whole(state):
        own = jax.tree.map(lambda leaf: leaf[0], state.private["params"])
        return trees.join(state.server["params"], own)

    first = whole(start)
    middle = jax.tree.map(lambda w, g: w - eta * g, first, slope(first))
    last = jax.tree.map(lambda w, g: w - eta * g, middle, slope(middle))
    for name in ("kernel", "bias"):  # the first step moves the body away, the second one sees it
        pull = 0.7 * (middle["fc_0"][name] - first["fc_0"][name])
        last["fc_0"][name] -= eta * pull
    assert_close(whole(end), last, "body and head")


def test_remarks():
    federation = toy_federation(local_epochs=2)
    assert algorithm().remarks(federation) == []
    messages = ["0.5 of a round's clients train fewer epochs"]
    assert algorithm(slow_fraction=0.5).remarks(federation) == messages
