"""FedAdagrad, FedAdam and FedYogi against their reference, and what they become in limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over
from tests.references import fedopt

# The reference's rule and settings; "code" is the published code's first v, rate and b2.
VARIANTS = {
    "fedadagrad": ("adagrad", {"weighting": "uniform", "b1": 0.3}),
    "fedadam": ("adam", {}),
    "fedyogi": ("yogi", {"v0": 2.0}),
    "fedadam-code": ("adam", {"bias_correction": True, "v0": 0.0}),
    "fedyogi-code": ("yogi", {"bias_correction": True, "v0": 0.0, "b2": 0.999}),
}
QUICK = [
    ("full-vmap", "fedadagrad"),
    ("partial-map", "fedadam"),
    ("partial-map", "fedyogi"),
    ("full-vmap", "fedadam-code"),
]
RATE, TAU = 0.03, 2e-3


def algorithm(name, **settings):
    return pfl.make_algorithm(name, settings)


@over(PATTERNS, QUICK, VARIANTS, again=("fedyogi-code",))
def test_reference(pattern, variant):
    case, name = Case(**PATTERNS[pattern]), variant.partition("-")[0]
    common, (rule, settings) = case.common(), VARIANTS[variant]
    settings = {"server_rate": RATE, "tau": TAU} | settings
    own = settings | {"v0": settings.get("v0", 1.0) * TAU**2}
    wanted = fedopt.run(case.initial(), case.clients(), 3, **common, rule=rule, **own)
    states, records = case.run_rounds(algorithm(name, **settings))
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], "global")
        assert_close(state.optimizer.first, models["first"], "first moment")
        assert_close(state.optimizer.second, models["second"], "second moment", 1e-12)
        for scored in ("global", "personalized"):
            assert_losses(record, case, scored, [models["global"]] * case.num_clients)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)


def test_defaults_are_the_papers():
    """The reference's own, but for the rate that the paper tunes."""
    for name, b1 in (("fedadagrad", 0.0), ("fedadam", 0.9), ("fedyogi", 0.9)):
        ours = algorithm(name)
        assert (ours.b1, ours.tau, ours.v0, getattr(ours, "b2", 0.99)) == (b1, 1e-3, 1.0, 0.99)


@pytest.fixture(scope="module")
def change():
    """A first model, and what the average lies away from it: the optimizer's gradient is minus it.

    One coordinate doesn't move.
    """
    rng = np.random.default_rng(0)
    model, moved = ({"a": rng.normal(size=(3, 2)), "b": rng.normal(size=4)} for _ in range(2))
    moved["b"][1] = 0
    return model, moved


def stepped(ours, change, rounds=1):
    """(step, memory) of the server's optimizer after rounds with the same change."""
    model, moved = change
    optimizer, step = ours.server_optimizer(), None
    memory = optimizer.init(model)
    for _ in range(rounds):
        step, memory = optimizer.update(jax.tree.map(np.negative, moved), memory, model)
    return step, memory


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_with_a_large_tau_it_is_fedavg_times_a_rate(name, change):
    tau = 1e12
    step, _ = stepped(algorithm(name, b1=0, tau=tau, v0=0, server_rate=tau), change)
    assert_close(step, change[1], "the whole change", 1e-11)


def test_adam_without_memory_steps_by_signs(change):
    ours = algorithm("fedadam", b1=0, b2=0, tau=1e-30, v0=0, server_rate=0.3)
    step, _ = stepped(ours, change)
    assert_close(step, jax.tree.map(lambda d: 0.3 * np.sign(d), change[1]), "signs", 1e-12)


def test_yogi_moves_v_by_the_same_part_up_and_down(change):
    ours = algorithm("fedyogi", b2=0.75, tau=1.0)
    _, memory = stepped(ours, change)
    for v, d in zip(jax.tree.leaves(memory.second), jax.tree.leaves(change[1]), strict=True):
        np.testing.assert_allclose(abs(v - 1), 0.25 * d**2, 1e-12)
        assert ((v > 1) == (d**2 > 1)).all()


def test_optax_has_other_algorithms_by_these_names(change):
    """It corrects both moments for bias, so that tau weighs otherwise; as the code's rate does."""
    model, moved = change
    settings = {"b1": 0.9, "b2": 0.99, "tau": 1e-1, "server_rate": 0.3}
    gradient = jax.tree.map(np.negative, moved)
    for name, theirs in (("fedadam", optax.adam), ("fedyogi", optax.yogi)):
        optimizer = theirs(0.3, 0.9, 0.99, 1e-1)
        other, _ = optimizer.update(gradient, optimizer.init(model), model)
        for settings_of in ({}, {"v0": 0.0, "bias_correction": True}):
            step, _ = stepped(algorithm(name, **settings, **settings_of), change)
            assert abs(step["a"] - other["a"]).min() > 1e-3, name
    tiny = settings | {"tau": 1e-30, "v0": 0.0, "bias_correction": True}
    optimizer = optax.adam(0.3, 0.9, 0.99, 1e-30)
    other, _ = optimizer.update({"a": gradient["a"]}, optimizer.init({"a": model["a"]}))
    step, _ = stepped(algorithm("fedadam", **tiny), change)
    np.testing.assert_allclose(step["a"], other["a"], 1e-9)  # without tau they agree
    assert jnp.all(step["b"][1] == 0)
