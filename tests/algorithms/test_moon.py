"""MOON against its reference, its limits, and what stands for a last model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import trees
from fedjax_pfl.algorithms.moon import contrast
from fedjax_pfl.models.projection import Projected
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, states_of, toy_federation
from tests.algorithms.harness import PATTERNS, Case, assert_steps, over, sampled_federation
from tests.references import local_sgd, moon, projected_network
from tests.references.network import cross_entropy

VARIANTS = {
    "cold": {"mu": 3.0, "tau": 0.3},
    "uniform": {"mu": 0.7, "tau": 2.0, "weighting": "uniform"},
}


def algorithm(**settings):
    return pfl.make_algorithm("moon", settings)


def models_of(state, i):
    """Client i's last model."""
    return jax.tree.map(lambda leaf: leaf[i], state.previous["params"])


@over(PATTERNS, [("partial-map", "cold"), ("full-vmap", "uniform")], VARIANTS)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    case = Case(**PATTERNS[pattern])
    common = case.common()
    wanted = moon.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        for i, previous in enumerate(models["previous"]):
            assert state.took_part[i] == (previous is not None)
            if previous is not None:
                assert_close(models_of(state, i), previous, f"last model of {i}")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        frozen = 2 * 4 * record["clients"]["local_steps"]  # two networks, minibatches of 4
        np.testing.assert_array_equal(record["clients"]["forward_samples"], frozen)
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, 1 if variant == "uniform" else None)
    if pattern == "partial-map":
        assert_first_rounds_are_plain(case, common, states)


def named(params):
    """Parameters of a projected network by the reference's names."""
    params = jax.tree.map(np.asarray, dict(params))
    return params | params.pop("projection")


@pytest.mark.thorough
def test_a_network_with_a_projection_head():
    """The projection's outputs are the features, and what is classified and scored."""
    case = Case(model=Projected(TanhNetwork(), 4), participation=0.6)
    states, records = case.run_rounds(algorithm(mu=3.0))
    initial = named(states[0].server["params"])
    options = {"mu": 3.0, "form": projected_network}
    wanted = moon.run(initial, case.clients(), 3, **case.common(), **options)
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        model = models["global"]
        assert_close(named(state.server["params"]), model, "global")
        losses = []
        for i in range(case.num_clients - 1):  # the last one has no test samples
            at = case.samples(i, "test")
            scores = projected_network.logits(model, case.x[at])
            losses.append(cross_entropy(scores, case.y[at])[0])
        for name in ("personalized", "global"):
            np.testing.assert_allclose(record["scores"][f"{name}/test/loss"][:-1], losses, 1e-9)


def assert_first_rounds_are_plain(case, common, states):
    """Also of who first comes later: no random network is its last model, as in the authors' code.

    Those who come again are moved by the term.
    """
    moved = {True: [], False: []}
    for t in range(1, case.rounds):
        for i in case.cohorts[t]:
            received = states[t].server["params"]
            batches, rate = common["batches"][t][i], case.rates[t]
            plain = local_sgd.sgd(received, batches, case.x, case.y, rate)
            gaps = jax.tree.map(lambda a, b: abs(a - b).max(), models_of(states[t + 1], i), plain)
            moved[bool(states[t].took_part[i])].append(max(jax.tree.leaves(gaps)))
    assert max(moved[False]) < 1e-12 and min(moved[True]) > 1e-4


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.thorough)])
def test_without_the_term_it_is_fedavg_to_the_bit(dtype):
    federation = sampled_federation(dtype=dtype)
    states, records = run_rounds(algorithm(mu=0), federation)
    wanted, scored = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server", 0)
    for record, other in zip(records, scored, strict=True):
        assert_close(record["scores"], other["scores"], "scores", 0)


@pytest.mark.thorough
def test_with_private_leaves_a_client_stays_near_the_model_that_it_received():
    """By hand: its kernels are the server's, its biases its own."""
    options = {"share": lambda path: "kernel" in path, "batch_size": 6, "local_steps": 2}
    federation = toy_federation((6, 6), (3, 3), model=TanhNetwork(), **options)
    _, before, after = states_of(algorithm(mu=3.0), federation, 2)
    own, task = federation.data.train.index[:6], federation.task
    samples = federation.data.samples[own].astype(float), federation.data.labels[own]
    batch = pfl.training.Batch(*samples, jnp.ones(6, bool))
    private = jax.tree.map(lambda leaf: leaf[0], before.private["params"])
    received = trees.join(before.server["params"], private)
    near, far = (task.features({"params": p}, samples[0]) for p in (received, models_of(before, 0)))

    def cosine(a, b):
        return jnp.sum(a * b, 1) / jnp.linalg.norm(a, axis=1) / jnp.linalg.norm(b, axis=1)

    def loss(params):
        z = task.features({"params": params}, samples[0])
        pairs = jnp.stack([cosine(z, near), cosine(z, far)]) / 0.5
        term = -jnp.mean(jax.nn.log_softmax(pairs, axis=0)[0])
        return task.loss({"params": params}, batch)[0] + 3.0 * term

    params = received
    for _ in range(2):
        params = jax.tree.map(lambda w, g: w - 0.3 * g, params, jax.grad(loss)(params))
    assert_close(models_of(after, 0), params, "client 0")


@pytest.mark.parametrize("zeros", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_rows_without_a_direction_have_cosine_and_slope_zero(zeros):
    """Rows of zeros, as a ReLU network may give them, of each of the three."""
    result = np.random.default_rng(0).normal(size=(3, 4, 5))
    result[list(zeros), 1] = 0
    losses, back = jax.vjp(lambda z: contrast(z, *result[1:], 0.5), jnp.asarray(result[0]))
    loss, slope = moon.contrast(*result, 0.5)
    np.testing.assert_allclose(jnp.mean(losses), loss, rtol=1e-12)
    np.testing.assert_allclose(back(jnp.full(4, 0.25))[0], slope, 1e-12, 1e-15)
    if 0 in zeros:
        assert losses[1] == pytest.approx(np.log(2)) and not slope[1].any()


def test_half_precision_holds_the_squares_of_large_features():
    rng = np.random.default_rng(1)
    result = [jnp.asarray(rng.normal(size=(4, 5)) * 200, "float16") for _ in range(3)]
    loss, _ = moon.contrast(*(np.asarray(leaf, float) for leaf in result), 0.5)
    np.testing.assert_allclose(jnp.mean(contrast(*result, 0.5)), loss, 1e-5)


def test_more_forward_passes_than_can_be_counted_are_refused():
    def check(batch_size):
        options = {"local_steps": 30_000_000, "batch_size": batch_size}
        pfl.Simulation(algorithm(), toy_federation((40,), (3,), **options)).check()

    check(35)
    with pytest.raises(pfl.InputError, match="moon would take 2,400,000,000 forward passes"):
        check(40)
