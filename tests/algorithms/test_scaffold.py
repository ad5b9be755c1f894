"""SCAFFOLD against its reference; momentum, clients without steps, running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import stack
from tests.models.norm_net import NormNet
from tests.references import scaffold

EQUAL = ((6,) * 5, (3,) * 5)


test_reference, test_contract = comparison(
    "scaffold",
    scaffold.run,
    settings={"server_rate": 0.7},
    states={"server": "global", "control": "control", "controls": "controls"},
    scores={"global": "global"},
    copies=2,
)


MOMENTUM, DECAY, STEPS = 0.9, 0.05, 3


def with_momentum():
    """Clients of six samples that take three steps on all of them."""
    return toy_federation(
        *EQUAL,
        batch_size=6,
        local_steps=STEPS,
        learning_rate=0.1,
        momentum=MOMENTUM,
        weight_decay=DECAY,
    )


def walked(federation, i, params):
    """(model after client i's steps, mean of the raw gradients on the way), by hand."""
    own = federation.data.train.index[6 * i : 6 * i + 6]
    inputs, labels = federation.data.samples[own].astype(float), federation.data.labels[own]
    batch = pfl.training.Batch(inputs, labels, jnp.ones(6, bool))
    slope = jax.jit(jax.grad(lambda p: federation.task.loss({"params": p}, batch)[0]))
    speed = mean = jax.tree.map(np.zeros_like, params)
    for _ in range(STEPS):
        raw = slope(params)
        mean = jax.tree.map(lambda m, g: m + g / STEPS, mean, raw)
        speed = jax.tree.map(lambda v, g, p: MOMENTUM * v + g + DECAY * p, speed, raw, params)
        params = jax.tree.map(lambda p, v: p - 0.1 * v, params, speed)
    return params, mean


@pytest.mark.costly
@pytest.mark.parametrize("name", ["scaffold", "weight_erosion"])
def test_mean_gradients_with_momentum_and_decay(name):
    """They are the raw ones: moves over the rate would be 1 / (1 - momentum) times too large."""
    federation = with_momentum()
    algorithm = pfl.make_algorithm(name, {} if name == "scaffold" else {"distance_penalty": 0})
    before, after = states_of(algorithm, federation, rounds=1)
    start = before.server["params"]
    models, means = zip(*(walked(federation, i, start) for i in range(5)), strict=True)
    middle, slope = (stack(each)["params"] for each in (models, means))
    if name == "scaffold":  # controls begin at 0: nothing is corrected yet
        assert_close(after.controls, slope, "controls")
        wanted = jax.tree.map(lambda leaf: leaf.mean(0), middle)
    else:  # a plain step along the mean of the clients' sums
        wanted = jax.tree.map(lambda x, g: x - 0.1 * STEPS * g.mean(0), start, slope)
    assert_close(after.server["params"], wanted, "server")


@pytest.mark.costly
def test_controls_of_clients_without_a_step():
    # With drop_last the clients of 3 and 1 samples take no step of 4; they count in the mean.
    states = states_of(pfl.make_algorithm("scaffold"), toy_federation(drop_last=True))
    for name, leaf in jax.tree_util.tree_leaves_with_path(states[-1].controls):
        assert not leaf[[1, 2]].any(), name
        assert leaf[[0, 3, 4]].any(), name


@pytest.mark.costly
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("scaffold", "affine_shared"),
        ("scaffold", "shared"),
        ("waffle", "affine_shared"),
        ("weight_erosion", "shared"),
    ],
)
def test_running_statistics_of_gradient_methods(name, policy):
    federation = toy_federation(model=NormNet(), batch_norm=policy)
    settings = {} if name == "weight_erosion" else {"server_rate": 3.0}
    first, second, *_, last = states_of(pfl.make_algorithm(name, settings), federation)
    if policy == "shared":
        assert not jax.tree.leaves(last.private)
        moved = last.server["batch_stats"]["bn"]
        assert (moved["mean"] != first.server["batch_stats"]["bn"]["mean"]).all()
        assert (moved["var"] > 0).all()
        if settings:  # a longer step of the server's is none of theirs
            plain = states_of(pfl.make_algorithm(name), federation)[1]
            statistics = (state.server["batch_stats"] for state in (second, plain))
            assert_close(*statistics, "statistics after one round", 0)
    else:
        assert not jax.tree.leaves(last.server["batch_stats"])
        mean = last.private["batch_stats"]["bn"]["mean"]
        assert len(np.unique(mean.round(9), axis=0)) == 5  # every client's own
