"""Attacks equal their papers' formulas, and see only the honest members of a round."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.uploads import attacks
from fedjax_pfl.utils import keys
from tests.references import attacks as reference

HONEST = np.array([1, 0, 1, 1, 0, 1, 1, 0], bool)
ATTACKERS = np.array([0, 1, 0, 0, 0, 0, 0, 1], bool)  # row 4 is absent

pytestmark = pytest.mark.usefixtures("double_precision")


@cache
def compiled(attack):
    return jax.jit(lambda *operands: attack(*operands))


def run(attack, seed=0, d=6):
    x = np.random.default_rng(seed).normal(0.3, 1, size=(8, d))
    stack = {"a": jnp.asarray(x[:, :2]), "b": jnp.asarray(x[:, 2:].reshape(8, 2, -1))}
    sent = compiled(attack)(stack, jnp.asarray(HONEST), jnp.asarray(ATTACKERS), jax.random.key(1))
    return x, np.concatenate(
        [np.asarray(leaf).reshape(8, -1) for leaf in (sent["a"], sent["b"])], 1
    )


def of_mean(formula):
    return lambda x: np.broadcast_to(formula(x[HONEST]), x.shape)


CASES = {
    "own": (attacks.SignFlip(), lambda x: -x),
    "of_mean": (attacks.SignFlip(of_mean=True), of_mean(lambda x: -x.mean(0))),
    "scale": (attacks.Scale(3.0), lambda x: 3 * x),
    "scale_by_members": (attacks.Scale(), lambda x: 7 * x),
    "alie": (attacks.ALittleIsEnough(1.5), of_mean(lambda x: reference.alie(x, 1.5))),
    "ipm": (attacks.InnerProduct(0.4), of_mean(lambda x: -0.4 * x.mean(0))),
    "mimic": (attacks.Mimic(warmup=0, steps=200), of_mean(reference.mimic)),
} | {
    f"{name}_{direction}": (kind(direction), of_mean(lambda x, f=formula, n=direction: f(x, n)))
    for name, kind, formula in (
        ("min_max", attacks.MinMax, reference.min_max),
        ("min_sum", attacks.MinSum, reference.min_sum),
    )
    for direction in attacks.DIRECTIONS
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_formulas(name, seed):
    attack, formula = CASES[name]
    x, sent = run(attack, seed)
    np.testing.assert_allclose(sent[ATTACKERS], formula(x)[ATTACKERS], atol=1e-9)


def test_gaussian_has_the_deviation_of_the_own_update():
    x, sent = run(attacks.Gaussian(), d=20000)
    np.testing.assert_allclose(sent[ATTACKERS].std(1), x[ATTACKERS].std(1), rtol=0.03)
    assert np.abs(np.corrcoef(sent)[np.triu_indices(8, 1)]).max() < 4 / np.sqrt(20000)


@pytest.mark.costly
def test_z_of_the_paper():
    """Baruch et al.: n = 25, m = 5 gives z = 0.25335."""
    np.testing.assert_allclose(attacks.hiding_z(25, 5), 0.25335, atol=1e-5)


@pytest.mark.parametrize("name", sorted(attacks.ATTACKS))
def test_nothing_of_absent_members_is_used(name):
    attack = compiled(attacks.ATTACKS[name]())
    x = np.random.default_rng(0).normal(size=(8, 5))
    y = x.copy()
    y[4] = np.nan
    masks = jnp.asarray(HONEST), jnp.asarray(ATTACKERS)
    one, two = (attack([jnp.asarray(v)], *masks, jax.random.key(2))[0] for v in (x, y))
    np.testing.assert_array_equal(one[ATTACKERS], two[ATTACKERS])


@pytest.mark.costly
@pytest.mark.parametrize("warmup", [1, 3])
def test_mimic_copies_the_client_of_its_warm_up_rounds(warmup):
    attack, ids = attacks.Mimic(warmup=warmup), np.array([12, 5, 7, 20, 1, 9, 4, 2])
    watch, key = jax.jit(attack.remembering), jax.random.key(1)
    memory = attack.first_memory([jnp.zeros(6)])
    start = np.asarray(keys.normal_like(key, [jnp.zeros((8, 6))])[0][0])
    theirs, copied = reference.Mimic(warmup, start), []
    for t in range(6):
        x = np.random.default_rng(t).normal(size=(8, 6))
        honest = HONEST & (np.arange(8) != t)  # another one is absent in each round
        sent, memory = watch(
            [jnp.asarray(x)], jnp.asarray(honest), jnp.asarray(ATTACKERS), key, ids, memory
        )
        copied.append(theirs.copied(x[honest], ids[honest]))
        wanted = x[list(ids).index(copied[-1])]
        np.testing.assert_allclose(sent[0][ATTACKERS], [wanted, wanted], atol=1e-12)
        np.testing.assert_allclose(memory.direction[0], theirs.z, atol=1e-9)
    assert memory.rounds == warmup and memory.target == theirs.target
    assert len(set(copied[warmup:])) <= 2
