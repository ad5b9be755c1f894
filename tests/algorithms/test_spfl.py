"""SPFL and SPFL-w against their references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Context, mixing
from fedjax_pfl.testing.toys import toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    FourLayers,
    assert_losses,
    assert_models,
    over,
)
from tests.references import local, spfl

GAMMA = 2
TWO = ("hidden",)
FOUR = ("hidden_a", "hidden_b", "hidden_c")
# The algorithm's settings, the reference with its own, the network and its body's blocks.
VARIANTS = {
    "published": ({}, spfl.run, {}, TWO),
    "paper": ({"weighting": "paper"}, spfl.run_paper, {}, TWO),
    "three-blocks": ({}, spfl.run, {}, FOUR),
    "one-step-given-parts": (
        {"local_updates": 1, "layer_weights": "0.1,0.7,0.9"},
        spfl.run,
        {"one_step": True, "weights": (0.1, 0.7, 0.9)},
        FOUR,
    ),
    "paper-three-blocks": ({"weighting": "paper"}, spfl.run_paper, {}, FOUR),
}
WEIGHTS_VARIANTS = {
    "weights": ({}, spfl.run_weights, {}, TWO),
    "memory": ({"memory": 0.6}, spfl.run_weights, {"ema": 0.6}, TWO),
    "four-blocks": ({"memory": 0.25}, spfl.run_weights, {"ema": 0.25}, FOUR),
    "one-step-given-parts": (
        {"local_updates": 1, "layer_weights": "0.3,0.7"},
        spfl.run_weights,
        {"one_step": True, "weights": (0.3, 0.7)},
        TWO,
    ),
}


def compare(name, pattern, settings, run, options, body):
    """Runs three rounds, the first and the third with the routine, beside the reference."""
    model = FourLayers() if body is FOUR else None
    case = Case(**PATTERNS[pattern], model=model)
    common, routine = case.common(), case.batches("routine")
    wanted = run(
        case.initial(),
        case.clients(),
        3,
        **common,
        routine_batches=routine,
        body=body,
        gamma=GAMMA,
        **options,
    )
    states, records = case.run_rounds(pfl.make_algorithm(name, {"gamma": GAMMA, **settings}))
    count = case.num_clients
    last = [case.initial()] * count
    for t, (models, record) in enumerate(zip(wanted, records, strict=True)):
        assert_models(states[t + 1].models, models["personalized"], "personalized")
        assert_losses(record, case, "personalized", models["personalized"])
        last = [models["trained"].get(i, last[i]) for i in range(count)]
        assert_losses(record, case, "trained", last)
        similarity = np.moveaxis(models["similarity"].reshape(-1, count, count), 0, -1)
        np.testing.assert_allclose(states[t + 1].cosines, similarity, 1e-9, 1e-9)
        mixing = record["matrices"]["mixing"]
        np.testing.assert_allclose(mixing, applied(models, run, len(body)), 1e-9, 1e-9)
        present = np.isin(np.arange(count), case.cohorts[t])
        due = t % GAMMA == 0
        copies = present + due * np.ones(count, int)  # the round's, and everybody's in the routine
        np.testing.assert_array_equal(record["up"], np.repeat(copies[:, None], len(body) + 1, 1))
        np.testing.assert_array_equal(record["down"], record["up"])
        steps = present * [len(own) for own in common["batches"][t]]
        steps += due * np.array([len(own) for own in routine[t]])
        steps *= settings.get("local_updates", 2)
        np.testing.assert_array_equal(record["clients"]["local_steps"], steps)
    return wanted


def applied(models, run, blocks):
    """The matrices of all blocks, the head's last."""
    weights = models["weights"]
    if run is spfl.run_weights:
        return weights
    if run is spfl.run_paper:
        return np.stack([weights[0]] * blocks + [weights[1]])
    return np.stack([weights] * blocks + [np.eye(len(weights))])


QUICK = (("partial-map", "paper"), ("full-vmap", "one-step-given-parts"))
QUICK_WEIGHTS = (("full-vmap", "memory"),)


@over(PATTERNS, QUICK, VARIANTS, again=("three-blocks", "paper-three-blocks"))
def test_spfl(pattern, variant):
    wanted = compare("spfl", pattern, *VARIANTS[variant])
    models = wanted[-1]["personalized"]
    apart = [
        np.abs(a["head"]["kernel"] - b["head"]["kernel"]).max() for a in models for b in models
    ]
    assert max(apart) > 1e-3 or pattern == "single"


@over(PATTERNS, QUICK_WEIGHTS, WEIGHTS_VARIANTS, again=("one-step-given-parts", "four-blocks"))
def test_spfl_w(pattern, variant):
    compare("spfl_w", pattern, *WEIGHTS_VARIANTS[variant])


def mixing_of(algorithm, updates):
    """Weights [M, M] of the body's layers, of updates that fill all leaves with one number each."""
    federation = toy_federation()
    model = federation.initial_model(jax.random.key(0))
    stack = jax.tree.map(lambda leaf: jnp.stack([jnp.full(leaf.shape, u) for u in updates]), model)
    ctx = Context(federation, None, jnp.int32(0), jnp.int32(1), None)
    zeros = jnp.zeros((len(updates), len(updates), 1))
    scores = jnp.moveaxis(algorithm._similarity(ctx, stack, zeros), -1, 0)
    by_block = algorithm._by_block(ctx, mixing.softmax(scores, jnp.ones(len(updates), bool)))
    return np.asarray(by_block if by_block.ndim == 2 else by_block[0])


@pytest.mark.parametrize("name", ["spfl", "spfl_w"])
def test_weights_lie_within_a_factor_of_e_squared(name):
    """It is reached between equal and opposite updates, of whatever length."""
    algorithm = pfl.make_algorithm(name)
    near, far = np.exp([1.0, -1.0])
    row = np.array([near, near, far]) / (2 * near + far)
    weights = mixing_of(algorithm, [1.0, 3.0, -2.0])
    np.testing.assert_allclose(weights[:2], [row, row], 1e-9)
    np.testing.assert_allclose(weights[0, 0] / weights[0, 2], np.e**2, 1e-9)
    np.testing.assert_allclose(weights.sum(axis=1), 1, 1e-12)
    np.testing.assert_allclose(mixing_of(algorithm, [1.0, 2.0, 5.0]), np.full((3, 3), 1 / 3), 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spfl", "spfl_w"])
def test_one_client_alone_trains_locally(name):
    case = Case(train_sizes=(6,), test_sizes=(3,))
    states = case.states_of(pfl.make_algorithm(name, {"local_updates": 1, "gamma": GAMMA}))
    alone = local.run(case.initial(), case.clients(), 3, **case.common())
    for state, models in zip(states[1:], alone, strict=True):
        assert_models(state.models, models["personalized"], "one client")
