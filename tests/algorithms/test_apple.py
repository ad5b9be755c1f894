"""APPLE against its reference, which starts from the library's own cores; its limits."""

import inspect
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.references import apple

# A tenth of three rounds is none: here the penalty falls over two. Momentum of cores is the
# federation's.
STRONG = {"relation_rate": 0.05, "mu": 0.7, "penalty_share": 0.7}
VARIANTS = {
    "independent": (STRONG | {"initial": "independent"}, 0.9),
    "cosine": (STRONG | {"penalty_schedule": "cosine"}, 0.0),
    "plain-steps": (STRONG | {"relation_momentum": 0.0}, 0.0),
    "defaults": ({}, 0.9),
}
QUICK = (("partial-map", "independent"), ("full-vmap", "cosine"))


def algorithm(**settings):
    return pfl.make_algorithm("apple", settings)


def models_of(stack):
    """A stack of the library's as a list of models."""
    count = len(jax.tree.leaves(stack)[0])
    return [jax.tree.map(lambda leaf, i=i: leaf[i], dict(stack["params"])) for i in range(count)]


@over(PATTERNS, QUICK, VARIANTS, elsewhere=("plain-steps", "defaults"))
def test_reference(pattern, variant):
    settings, momentum = VARIANTS[variant]
    case = Case(**PATTERNS[pattern], momentum=momentum)
    states, records = case.run_rounds(algorithm(**settings))
    cores = models_of(states[0].cores)
    if settings.get("initial") == "independent":
        assert abs(cores[0]["head"]["kernel"] - cores[1]["head"]["kernel"]).max() > 0.1
    else:
        assert_models(states[0].cores, [case.initial()] * case.num_clients, "first cores")
    common, options = case.common(), {k: v for k, v in settings.items() if k != "initial"}
    wanted = apple.run(cores, case.clients(), 3, **common, momentum=momentum, **options)
    for t, (models, record) in enumerate(zip(wanted, records, strict=True)):
        after, who = states[t + 1], case.cohorts[t]
        assert_models(after.cores, models["cores"], "cores")
        assert_models(after.personal, models["personalized"], "personal")
        np.testing.assert_allclose(after.relations, models["relations"], 1e-9, 1e-9)
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, who, common["batches"][t])
        present = np.isin(np.arange(case.num_clients), who)
        own = np.where(present, np.diagonal(models["relations"]), np.nan)
        np.testing.assert_allclose(record["clients"]["self_relation"], own, 1e-9)
        np.testing.assert_array_equal(record["up"], np.repeat(present[:, None], 2, axis=1))
        np.testing.assert_array_equal(record["down"], case.num_clients * record["up"])
        shown = np.where(present[:, None], models["relations"], np.eye(case.num_clients))
        np.testing.assert_allclose(record["matrices"]["relations"], shown, 1e-9, 1e-9)
    # Public code leaves the relations where they are.
    moved = np.abs(states[-1].relations - states[0].relations)[case.cohorts[0]]
    assert moved.max() > 1e-7


@pytest.mark.parametrize("schedule", apple.SCHEDULES)
@pytest.mark.parametrize(("share", "dtype"), [(0.53, jnp.float32), (0.29, jnp.float64)])
def test_the_penalty_falls_to_zero_in_the_given_share_of_rounds(schedule, share, dtype):
    """Though a share of 100 rounds is a little less than a whole number in these types."""
    assert np.floor(dtype(share) * 100) == round(share * 100) - 1
    ours = replace(algorithm(penalty_schedule=schedule, mu=2.0), penalty_share=dtype(share))
    last = round(share * 100)
    rounds = (0, last // 2, last - 1, last, 99)
    result = [ours.penalty(jnp.int32(t), jnp.int32(100)) for t in rounds]
    wanted = [2 * apple.penalty_factor(t, 100, share, schedule) for t in rounds]
    np.testing.assert_allclose(result, wanted, 1e-5)
    assert wanted[2] > 0 == wanted[3]
    with jax.debug_nans(True):  # a share of one round is none
        assert ours.penalty(jnp.int32(0), jnp.int32(1)) == 0


@pytest.mark.thorough
def test_a_private_head_is_trained_whole_and_never_mixed():
    """One step on all samples: the body moves by q_ii times the gradient, the head by all of it."""
    federation = toy_federation((6, 6), (3, 3), share="body", batch_size=6, local_steps=1)
    start, end = states_of(algorithm(initial="independent"), federation, 1)
    assert_close(start.personal["params"]["head"], start.cores["params"]["head"], "heads", 0)
    body = start.cores["params"]["fc_0"]["kernel"]
    mixed = np.broadcast_to(body.mean(axis=0), body.shape)
    np.testing.assert_allclose(start.personal["params"]["fc_0"]["kernel"], mixed, 1e-12)
    rows, data = federation.data.train.index[:6], federation.data
    batch = pfl.training.Batch(
        data.samples[rows].astype(float), data.labels[rows], jnp.ones(6, bool)
    )
    first = jax.tree.map(lambda leaf: leaf[0], start.personal["params"])
    slope = jax.grad(lambda params: federation.task.loss({"params": params}, batch)[0])(first)
    for layer, share in (("fc_0", 0.5), ("head", 1.0)):
        before, after = (state.cores["params"][layer]["kernel"][0] for state in (start, end))
        np.testing.assert_allclose(
            before - after, 0.3 * share * slope[layer]["kernel"], 1e-9, 1e-12
        )


def test_defaults_are_the_published_ones():
    """The reference has the momentum of cores beside them, which here is local training's."""
    own = algorithm().hyperparameters()
    assert own.pop("initial") == "common"
    stated = inspect.signature(apple.run).parameters
    assert own == {name: stated[name].default for name in own}
