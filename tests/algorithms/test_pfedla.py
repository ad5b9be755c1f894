"""pFedLA and HeurpFedLA against their reference, which starts from the library's own networks;
their limits, and the direction in which hypernetworks move."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import mixing
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.utils import trees
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    FourLayers,
    TwoLayers,
    assert_losses,
    assert_models,
    over,
)
from tests.references import pfedla

SMALL = {"embedding_size": 4, "hidden_size": 6}
TWO = ("hidden", "head")
FOUR = ("hidden_a", "hidden_b", "hidden_c", "head")
# Name, settings, the reference's settings, the blocks. The hypernetworks' rate is its default, 1,
# unless stated.
VARIANTS = {
    "softmax": ("pfedla", {}, {}, TWO),
    "heuristic": ("heurpfedla", {"retained": 1}, {"retained": 1}, TWO),
    "relu-independent": (
        "pfedla",
        {"weighting": "relu_norm", "initial": "independent"},
        {"weighting": "relu_norm"},
        TWO,
    ),
    "heuristic-relu": (
        "heurpfedla",
        {"weighting": "relu_norm", "retained": 2},
        {"weighting": "relu_norm", "retained": 2},
        FOUR,
    ),
    "whole-model": (
        "pfedla",
        {"grouping": "model", "hypernetwork_rate": 0.3},
        {"hypernetwork_rate": 0.3},
        (TWO,),
    ),
    "stages": ("heurpfedla", {"grouping": "stages"}, {"retained": 1}, (FOUR[:3], "head")),
    "none-retained": ("heurpfedla", {"retained": 0}, {}, FOUR),
}
QUICK = (
    ("partial-map", "softmax"),
    ("partial-map", "heuristic"),
    ("full-vmap", "relu-independent"),
    ("partial-map", "whole-model"),
    ("full-vmap", "stages"),
)


def networks(state):
    """(embeddings, hypernetworks) of a state, in the reference's form."""
    count, blocks = len(state.embedding), state.kernel.shape[2]
    return list(state.embedding), [
        {
            "trunk": [{"kernel": w[i], "bias": b[i]} for w, b in state.trunk],
            "output": [
                {"kernel": state.kernel[i, :, b].T, "bias": state.bias[i, :, b]}
                for b in range(blocks)
            ],
        }
        for i in range(count)
    ]


def assert_same_networks(state, models):
    embeddings, hypernetworks = networks(state)
    np.testing.assert_allclose(embeddings, models["embedding"], 1e-9, 1e-9)
    for ours, theirs in zip(hypernetworks, models["hypernetwork"], strict=True):
        for part in ("trunk", "output"):
            for layer, expected in zip(ours[part], theirs[part], strict=True):
                for name in ("kernel", "bias"):
                    np.testing.assert_allclose(layer[name], expected[name], 1e-9, 1e-9)


def models_of(stack):
    """A stack of the library's as a list of models."""
    return [
        {
            layer: {name: leaf[i] for name, leaf in leaves.items()}
            for layer, leaves in stack["params"].items()
        }
        for i in range(len(stack["params"]["head"]["bias"]))
    ]


@over(PATTERNS, QUICK, VARIANTS, again=("heuristic-relu", "none-retained"))
def test_reference(pattern, variant):
    name, settings, options, blocks = VARIANTS[variant]
    deep = any("hidden_a" in pfedla.layers_of(block) for block in blocks)
    scored = {"scored": True}  # what is downloaded is not in the state
    case = Case(**PATTERNS[pattern] | scored, model=FourLayers() if deep else None)
    states, records = case.run_rounds(pfl.make_algorithm(name, {**SMALL, **settings}))
    embeddings, hypernetworks = networks(states[0])
    first = case.initial()
    if settings.get("initial") == "independent":
        first = models_of(states[0].uploads)
        assert abs(first[0]["head"]["kernel"] - first[1]["head"]["kernel"]).max() > 0.1
    wanted = pfedla.run(
        first,
        case.clients(),
        3,
        **case.common(),
        blocks=blocks,
        embeddings=embeddings,
        hypernetworks=hypernetworks,
        **options,
    )
    before = at_start(
        embeddings,
        hypernetworks,
        options.get("retained", 0),
        options.get("weighting", "softmax"),
    )
    start = before["alpha"]
    for t, (models, record) in enumerate(zip(wanted, records, strict=True)):
        assert_models(states[t + 1].uploads, models["uploaded"], "uploads")
        assert_same_networks(states[t + 1], models)
        assert_losses(record, case, "personalized", models["personalized"])
        assert_losses(record, case, "trained", models["uploaded"])
        assert_round(case, t, record, before, blocks)
        before = models
    assert abs(before["alpha"] - start).max() > 1e-4 or pattern == "single"


def at_start(embeddings, hypernetworks, retained, weighting):
    """The weights [N, L, N] that the first round applies, and what it retains [N, L]."""
    masks, alphas = [], []
    for i, (vector, psi) in enumerate(zip(embeddings, hypernetworks, strict=True)):
        alpha = pfedla.hypernetwork(vector, psi, weighting)
        masks.append(pfedla.retained_blocks(alpha, i, retained))
        alphas.append(pfedla.with_retained(alpha, i, masks[-1]))
    return {"alpha": np.array(alphas), "retained": np.array(masks)}


def assert_round(case, t, record, before, blocks):
    """The matrices with which a round began, and what travelled in it."""
    count = case.num_clients
    present = np.isin(np.arange(count), case.cohorts[t])
    alpha = np.where(present[:, None, None], before["alpha"], np.eye(count)[:, None])
    recorded = record["matrices"]["alpha"]
    np.testing.assert_allclose(recorded, np.moveaxis(alpha, 1, 0), 1e-9, 1e-9)
    kept = np.repeat(before["retained"], [len(pfedla.layers_of(b)) for b in blocks], axis=1)
    np.testing.assert_array_equal(record["down"], present[:, None] & ~kept)
    np.testing.assert_array_equal(record["up"], np.broadcast_to(present[:, None], kept.shape))
    steps = case.federation.schedule.total_steps(case.sizes)
    np.testing.assert_array_equal(record["clients"]["local_steps"], steps * present)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", pfedla.WEIGHTINGS)
def test_networks_as_the_reference_draws_them(weighting):
    """Sizes and ranges: N(0, 1), U(+-1/sqrt(fan_in)), and output layers at 0 or in U(0, 1)."""
    federation = toy_federation(model=TwoLayers())
    program = Program(
        make_runs(pfl.make_algorithm("pfedla", {"weighting": weighting}), federation, [0]),
        federation,
        1,
    )
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], program.start())
    embeddings, hypernetworks = networks(state)
    assert np.shape(embeddings) == (5, 100)
    assert abs(np.mean(embeddings)) < 0.15 and 0.85 < np.std(embeddings) < 1.15
    for psi in hypernetworks:
        assert len(psi["trunk"]) == 3 and len(psi["output"]) == 2
        for layer in psi["trunk"]:
            for name in ("kernel", "bias"):
                assert 0.085 < np.abs(layer[name]).max() <= 0.1
            assert layer["kernel"].shape == (100, 100)
        for layer in psi["output"]:
            assert not layer["bias"].any()
            high = 1.0 if weighting == "relu_norm" else 0.0
            assert layer["kernel"].shape == (100, 5) and layer["kernel"].min() >= 0.0
            assert 0.9 * high <= layer["kernel"].max() <= high
    assert abs(embeddings[0] - embeddings[1]).max() > 0.5


# ------------------------------------------------------------------ limits

COUNT = 5
TINY = {"embedding_size": 3, "hidden_size": 5}


def scattered(federation, seed):
    """Five models far apart, [N, ...]."""
    model = federation.initial_model(jax.random.key(seed))
    leaves, treedef = jax.tree.flatten(model)
    keys = jax.random.split(jax.random.key(seed + 1), len(leaves))
    return treedef.unflatten(
        [
            jax.random.normal(k, (COUNT, *x.shape), x.dtype)
            for k, x in zip(keys, leaves, strict=True)
        ]
    )


def random_networks(seed, blocks):
    rng = np.random.default_rng(seed)
    d, h = TINY["embedding_size"], TINY["hidden_size"]
    sizes = [(d, h), (h, h), (h, h)]
    trunk = [(rng.normal(size=(COUNT, *s)), rng.normal(size=(COUNT, s[1]))) for s in sizes]
    kernel, bias = (
        rng.normal(size=(COUNT, COUNT, blocks, h)),
        rng.normal(size=(COUNT, COUNT, blocks)),
    )
    return jax.tree.map(jnp.asarray, (rng.normal(size=(COUNT, d)), trunk, kernel, bias))


@partial(jax.jit, static_argnames=("weighting", "plan"))
def stepped(networks, uploads, centres, weighting, plan):
    """(Gram form of the gradient, the gradient, losses before, after a step, after its opposite).

    Client i's loss is |theta - c_i|^2 / 2.
    """
    algorithm = pfl.make_algorithm("pfedla", TINY | {"weighting": weighting})

    def received(networks):
        alpha = jnp.moveaxis(algorithm._alpha(networks), 1, 0)
        return mixing.apply(alpha, uploads, uploads, plan)

    def loss(networks):
        away = optax.tree.sub(received(networks), centres)
        return 0.5 * optax.tree.vdot(away, away)

    change = optax.tree.scale(-0.1, optax.tree.sub(received(networks), centres))  # -eta gradient
    _, transpose = jax.vjp(algorithm._alpha, networks)
    (descent,) = transpose(algorithm._products(plan, change, uploads))
    ahead, back = (optax.tree.add_scale(networks, by, descent) for by in (1e-3, -1e-3))
    losses = [loss(each) for each in (networks, ahead, back)]
    return optax.tree.scale(-10.0, descent), jax.grad(loss)(networks), losses


@pytest.mark.parametrize("weighting", ["softmax", "relu_norm"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.thorough
def test_a_step_of_the_hypernetworks_descends(weighting, seed):
    """A small step lowers the sum of L_i(thetabar_i).

    The public codes subtract what they should add, and so raise it.
    """
    federation = toy_federation()
    uploads, centres = scattered(federation, seed), scattered(federation, seed + 100)
    networks = random_networks(seed, federation.plan.num_blocks)
    gram, slope, losses = stepped(networks, uploads, centres, weighting, federation.plan)
    # The Gram form is the gradient through all parameters of the models.
    assert_close(gram, slope, "gradient")
    before, ahead, back = losses
    assert ahead < before < back


@pytest.mark.slow
def test_frozen_at_uniform_it_averages_what_is_stored():
    federation = toy_federation(participation=0.6)
    algorithm = pfl.make_algorithm("pfedla", TINY | {"hypernetwork_rate": 0.0})
    states, records = run_rounds(algorithm, federation)
    for state, record in zip(states[1:], records, strict=True):
        present = record["clients"]["participated"]
        np.testing.assert_allclose(record["matrices"]["alpha"][:, present], 1 / COUNT, 1e-12)
        assert not np.any(state.kernel)
        assert not np.any(state.bias)
    assert_close(states[-1].embedding, states[0].embedding, "embeddings", 0)


@pytest.mark.slow
def test_with_every_block_retained_it_is_local_training():
    federation = toy_federation()
    blocks = federation.plan.num_blocks
    states, records = run_rounds(
        pfl.make_algorithm("heurpfedla", TINY | {"retained": blocks}), federation
    )
    alone = states_of(pfl.make_algorithm("local"), federation)
    for state, other, record in zip(states[1:], alone[1:], records, strict=True):
        assert_close(dict(state.uploads), dict(other.models), "models", 1e-12)
        assert not record["down"].any()  # and nothing is sent
    assert_close(states[-1].kernel, states[0].kernel, "no gradient reaches retained blocks", 0)


@pytest.mark.parametrize("retained", [0, 1, 2])
def test_exactly_k_blocks_are_retained_and_not_sent(retained):
    federation = toy_federation()
    settings = TINY | {"retained": retained, "hypernetwork_rate": 0.5}
    _, records = run_rounds(pfl.make_algorithm("heurpfedla", settings), federation, scored=())
    for record in records:
        np.testing.assert_array_equal(record["clients"]["retained_blocks"], retained)
        np.testing.assert_array_equal(
            record["down"].sum(axis=1), federation.plan.num_blocks - retained
        )
        assert (record["up"] == 1).all()
        own = np.einsum("bii->ib", record["matrices"]["alpha"]) == 1
        np.testing.assert_array_equal(own, record["down"] == 0)


@pytest.mark.slow
def test_a_private_block_can_not_be_retained():
    federation = toy_federation(share="body")
    with pytest.raises(pfl.InputError, match="retained must be at most 1 blocks, got 2"):
        pfl.make_algorithm("heurpfedla", {"retained": 2}).check(federation)
    _, records = run_rounds(pfl.make_algorithm("heurpfedla", TINY), federation, scored=())
    head = federation.plan.blocks.index("head")
    for record in records:
        assert (record["down"][:, head] == 1).all()  # of size 0: nothing of it travels
        assert (record["down"][:, 1 - head] == 0).all()


def test_equal_uploads_are_returned_whatever_the_weights():
    federation, algorithm = toy_federation(), pfl.make_algorithm("pfedla", TINY)
    networks = random_networks(1, federation.plan.num_blocks)

    @jax.jit
    def mixed():
        stack = trees.replicate(federation.initial_model(jax.random.key(3)), COUNT)
        weights = jnp.moveaxis(algorithm._alpha(networks), 1, 0)
        return mixing.apply(weights, stack, stack, federation.plan), stack

    assert_close(*mixed(), "models", 1e-12)
