"""FedGen against its reference, and its limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.batching import client_key
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.harness import PATTERNS, Case, assert_losses, assert_steps, over
from tests.references import fedavg, fedgen

SMALL = {"noise_width": 2, "hidden_width": 4, "generator_steps": 3, "generator_batch": 6}
VARIANTS = {
    "default": {"generator_rate": 0.05},
    "strong": {"weight": 3.0, "generator_rate": 0.01},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedgen", SMALL | settings)


def draws_of(case):
    """The reference's `draw`, with what the library draws."""

    def drawn(key, counts, size):
        of_class, of_noise = jax.random.split(key)
        chance = jnp.where(
            counts > 0, jnp.log(jnp.maximum(counts, 1).astype(jnp.float64)), -jnp.inf
        )
        labels = jax.random.categorical(of_class, chance, shape=(size,))
        noise = jax.random.uniform(of_noise, (size, SMALL["noise_width"]), jnp.float64)
        return np.asarray(noise), np.asarray(labels)

    def draw(t, i, k, counts):
        counts = jnp.asarray(counts, jnp.int32)
        if i is None:
            key = keys.of_round(case.key, "generator", jnp.int32(t))
            steps = jax.random.split(key, SMALL["generator_steps"])
            return [drawn(one, counts, SMALL["generator_batch"]) for one in steps]
        key = keys.of_round(case.key, "train", jnp.int32(t))
        steps = client_key(key, int(case.federation.data.ids[i]))[1]
        rng = jax.random.fold_in(jax.random.fold_in(steps, k), 7)
        return drawn(rng, counts, case.federation.schedule.batch_size)

    return draw


@over(PATTERNS, [("partial-map", "default"), ("full-vmap", "strong")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    states, records = case.run_rounds(algorithm(**settings))
    first = jax.tree.map(np.asarray, states[0].generator)
    common = case.common(generator=first, draw=draws_of(case))
    wanted = fedgen.run(case.initial(), case.clients(), 3, **common, **settings)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_close(state.server["params"], models["global"], f"global in round {t}")
        assert_close(state.generator, models["generator"], f"generator in round {t}")
        everyone = [models["global"]] * case.num_clients
        assert_losses(record, case, "global", everyone)
        assert_steps(record, case.cohorts[t], common["batches"][t])
        size = (2 + 3) * 4 + 2 * 4 + 4 * 5 + 5
        present = case.present(t)
        np.testing.assert_array_equal(record["clients"]["numbers_down"], size * present)
        np.testing.assert_array_equal(record["clients"]["numbers_up"], 3 * present)


def test_without_the_generated_features_it_is_fedavg():
    case = Case(**PATTERNS["partial-map"])
    states, _ = case.run_rounds(algorithm(weight=0.0, generator_rate=0.05))
    wanted = fedavg.run(case.initial(), case.clients(), 3, **case.common())
    assert_close(states[-1].server["params"], wanted[-1]["global"], "global")


def test_classes_that_nobody_has_are_not_drawn():
    with jax.enable_x64(True):
        ours, key = algorithm(), jax.random.key(0)
        ctx = pfl.Context(toy_federation(), key, jnp.int32(0), jnp.int32(1), None)
        _, labels = ours.draw(key, ours.init(ctx).generator, jnp.asarray([0, 3, 0]), 40)
    assert set(np.asarray(labels).tolist()) == {1}


@pytest.mark.thorough
def test_without_an_update_the_generator_stays():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=0, train_sizes=(5,))
    before, after = states_of(algorithm(generator_rate=0.05), federation, 1)
    before, after = (jax.tree.leaves((s.generator, s.memory)) for s in (before, after))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
