"""FedGen against its reference, and what its generator draws."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.batching import step_key
from fedjax_pfl.testing.toys import states_of, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import fedgen

SMALL = {"noise_width": 2, "hidden_width": 4, "generator_steps": 3, "generator_batch": 6}


algorithm = maker("fedgen", SMALL)


def draws_of(case):
    """The reference's `draw`, with what the library draws."""

    @partial(jax.jit, static_argnums=2)
    def drawn(key, counts, size):
        of_class, of_noise = jax.random.split(key)
        chance = jnp.where(
            counts > 0, jnp.log(jnp.maximum(counts, 1).astype(jnp.float64)), -jnp.inf
        )
        labels = jax.random.categorical(of_class, chance, shape=(size,))
        noise = jax.random.uniform(of_noise, (size, SMALL["noise_width"]), jnp.float64)
        return noise, labels

    def draw(t, i, k, counts):
        counts = jnp.asarray(counts, jnp.int32)
        if i is None:
            key = keys.of_round(case.key, "generator", jnp.int32(t))
            steps = jax.random.split(key, SMALL["generator_steps"])
            size = SMALL["generator_batch"]
            return [jax.device_get(drawn(one, counts, size)) for one in steps]
        key = keys.of_round(case.key, "train", jnp.int32(t))
        rng = jax.random.fold_in(step_key(key, int(case.federation.data.ids[i]), k), 7)
        return jax.device_get(drawn(rng, counts, case.federation.schedule.batch_size))

    return draw


def generator_and_draws(one):
    first = jax.tree.map(np.asarray, one.states[0].generator)
    return {"generator": first, "draw": draws_of(one.case)}


def check_numbers(now):
    size = (2 + 3) * 4 + 2 * 4 + 4 * 5 + 5
    np.testing.assert_array_equal(now.clients["numbers_down"], size * now.present)
    np.testing.assert_array_equal(now.clients["numbers_up"], 3 * now.present)


test_reference, test_contract = comparison(
    "fedgen",
    fedgen.run,
    settings={"weight": 3.0, "generator_rate": 0.05, **SMALL},
    ours=tuple(SMALL),
    given=generator_and_draws,
    states={"server": "global", "generator": "generator"},
    scores={"global": "global"},
    check=check_numbers,
)


@pytest.mark.costly
def test_classes_that_nobody_has_are_not_drawn():
    with jax.enable_x64(True):
        ours, key = algorithm(), jax.random.key(0)
        ctx = pfl.Context(toy_federation(), key, jnp.int32(0), jnp.int32(1), None)
        _, labels = ours.draw(key, ours.init(ctx).generator, jnp.asarray([0, 3, 0]), 40)
    assert set(np.asarray(labels).tolist()) == {1}


@pytest.mark.costly
def test_without_an_update_the_generator_stays():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=0, train_sizes=(5,))
    before, after = states_of(algorithm(generator_rate=0.05), federation, 1)
    before, after = (jax.tree.leaves((s.generator, s.memory)) for s in (before, after))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
