"""Clipping by samples and noise, against DP-SGD by hand and with samples that try to break it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.federation.client import Calls
from fedjax_pfl.federation.gradient_privacy import SamplePrivacy
from fedjax_pfl.federation.swept_numbers import with_numbers
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from fedjax_pfl.training.local_step import LocalStep
from fedjax_pfl.training.private_gradient import add_noise, private_gradient
from tests.references.dp_sgd import private_gradient as reference
from tests.references.network import flat, scale, subtract

SLOTS, EXPECTED, PULL = 6, 4, 0.3
CLIP = 0.5  # below most norms of the gradients here, above some
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(SLOTS, 4)), rng.integers(0, 3, SLOTS)
ALL = np.ones(SLOTS, bool)


pytestmark = pytest.mark.usefixtures("double_precision")


@pytest.fixture(scope="module")
def setup():
    """(gradient(x, y, valid, clip, noise, key) -> [calls] gradients, the model)."""
    with jax.enable_x64(True):
        federation = toy_federation(
            model=TanhNetwork(), validation_size=0, dp="sample", dp_clip=CLIP, batch_size=EXPECTED
        )
        model = jax.device_get(federation.initial_model(jax.random.key(1)))
        centre = jax.tree.map(lambda leaf: leaf + 0.1, model["params"])
        pull = pfl.training.proximal(PULL)
        zero = jnp.int32(0)
        counts = federation.data.class_counts[0]

        @jax.jit
        def gradients(x, y, valid, clip, noise, key):
            private = with_numbers(federation, {"dp_clip": clip, "dp_noise": noise})
            batch = pfl.training.Batch(x, y, valid)

            def client():
                expected, calls = jnp.int32(EXPECTED), Calls((batch,))
                return pfl.training.Client(
                    zero, zero, zero, counts, zero, zero, None, expected, calls
                )

            def gradient(step, client):
                return step.loss_and_gradient(model, batch, key, centre, client).gradient

            first, second = (
                LocalStep(private, 0.1, extra_loss=pull, noise_index=index) for index in (0, 1)
            )
            same = client()  # twice within a step, and in another training with the same key
            return gradient(first, same), gradient(first, same), gradient(second, client())

        def one(x=X, y=Y, valid=ALL, clip=CLIP, noise=0.0, key=0, call=None):
            made = gradients(x, jnp.int32(y), valid, clip, noise, jax.random.key(key))
            made = jax.device_get(made)
            return made[0] if call is None else made[call]

        return one, {name: model["params"][name] for name in ("hidden", "head")}, centre


def towards(centre, params):
    return scale(PULL, subtract(params, centre))


@pytest.mark.parametrize("clip", [1e-3, CLIP, 1e6])
@pytest.mark.parametrize("count", [0, 3, 4, 6])
def test_private_gradient_against_the_reference(setup, clip, count):
    """The sum is divided by the expected size; divided by the drawn one it would tell that."""
    gradient, params, centre = setup
    valid = np.arange(SLOTS) < count
    samples = np.where(valid[:, None], X, np.nan)  # padding adds nothing, whatever it holds
    wanted = reference(
        params, range(count), X, Y, clip, EXPECTED, extra_gradient=partial(towards, centre)
    )
    assert_close(gradient(samples, valid=valid, clip=clip), wanted, f"{count} samples")


def test_without_clip_and_noise_it_is_the_gradient(setup):
    gradient, params, centre = setup
    valid = np.arange(SLOTS) < EXPECTED
    found = gradient(valid=valid, clip=np.inf)
    wanted = reference(
        params, range(EXPECTED), X, Y, np.inf, EXPECTED, extra_gradient=partial(towards, centre)
    )
    assert_close(found, wanted, "gradient")


@pytest.mark.parametrize("value", [0.0, 1e3, 1e21, 1e200, np.inf, np.nan])
def test_no_sample_changes_the_sum_by_more_than_the_clip(setup, value):
    gradient, *_ = setup
    samples = X.copy()
    samples[2] = value
    others = np.arange(SLOTS) != 2
    with_it, without = (EXPECTED * flat(gradient(samples, valid=valid)) for valid in (ALL, others))
    assert np.linalg.norm(with_it - without) <= CLIP * (1 + 1e-12)
    moved = np.where(others, Y, (Y + 1) % 3)
    changed = EXPECTED * flat(gradient(samples, moved))
    assert np.linalg.norm(with_it - changed) <= 2 * CLIP * (1 + 1e-12)


def test_noise_of_no_two_calls_is_alike(setup):
    """Where it is, the difference of two gradients has none."""
    gradient, *_ = setup
    noise = np.array([
        [EXPECTED * (flat(gradient(noise=2.0, key=key, call=call)) - flat(gradient()))
         for call in range(3)]
        for key in range(60)
    ]) / (2.0 * CLIP)  # fmt: skip
    flattened = np.moveaxis(noise, 1, 0).reshape(3, -1)  # [calls, keys and coordinates]
    for pair in np.corrcoef(flattened)[np.triu_indices(3, 1)]:
        assert abs(pair) < 4 / np.sqrt(flattened.shape[1])
    keys = noise[:, 0]  # as clients, steps and rounds have their own
    assert abs(np.corrcoef(keys[0], keys[1])[0, 1]) < 4 / np.sqrt(keys.shape[1])
    assert len(np.unique(flattened)) == flattened.size


def test_noise_has_its_deviation():
    total = {"a": jnp.zeros(20_000), "b": jnp.zeros((100, 200))}
    drawn = jax.jit(add_noise)(total, 0.5, 3.0, jax.random.key(3))
    both = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(drawn)])
    np.testing.assert_allclose(both.std(), 1.5, rtol=0.01)
    assert abs(both.mean()) < 4 * 1.5 / np.sqrt(both.size)


@pytest.mark.costly
def test_fixed_layers_have_no_part(setup):
    """Neither in norms nor in noise."""
    _, params, _ = setup
    federation = toy_federation(model=TanhNetwork(), dp="sample", dp_clip=0.2, batch_size=EXPECTED)
    trainable = {name: dict.fromkeys(leaves, name == "head") for name, leaves in params.items()}
    zero = jnp.int32(0)
    batch = pfl.training.Batch(X, jnp.int32(Y), jnp.ones(SLOTS, bool))

    @jax.jit
    def gradient(noise):
        expected, calls = jnp.int32(EXPECTED), Calls((batch,))
        client = pfl.training.Client(zero, zero, zero, zero, zero, zero, None, expected, calls)
        private = with_numbers(federation, {"dp_noise": noise})
        step = LocalStep(private, 0.1, trainable=trainable)
        return step.loss_and_gradient(
            {"params": params}, batch, jax.random.key(0), None, client
        ).gradient

    wanted = reference(params, range(SLOTS), X, Y, 0.2, EXPECTED, layers=("head",))
    assert_close(gradient(0.0), wanted, "gradient")
    noisy = jax.device_get(gradient(1.0))
    assert not any(leaf.any() for leaf in noisy["hidden"].values())
    assert (noisy["head"]["kernel"] != wanted["head"]["kernel"]).all()


@pytest.mark.costly
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_samples_one_by_one_and_at_once(platform):
    """Eleven samples are two chunks of an accelerator, the second one with padding."""
    x = np.random.default_rng(1).normal(size=(11, 3))
    batch = pfl.training.Batch(x, jnp.zeros(11, jnp.int32), jnp.arange(11) != 3)
    client = pfl.training.Client(*(jnp.int32(0),) * 6, None, jnp.int32(10))

    def of_sample(sample, key):
        return jnp.sum(sample.inputs), {"w": sample.inputs[0]}

    made = partial(private_gradient, of_sample, client=client, noise_index=0, platform=platform)
    loss, gradient = jax.jit(made)(batch, privacy=SamplePrivacy(1.0), rng=jax.random.key(0))
    there = np.delete(x, 3, axis=0)
    norms = np.linalg.norm(there, axis=1, keepdims=True)
    np.testing.assert_allclose(gradient["w"], (there * np.minimum(1, 1 / norms)).mean(0), 1e-12)
    np.testing.assert_allclose(loss, there.sum() / 10, 1e-12)

    def huge(sample, key):  # whose sum is infinite, and would make the client fail
        return 1.5e308 + 0 * jnp.sum(sample.inputs), {"w": sample.inputs[0]}

    loss, _ = private_gradient(
        huge, batch, client=client, noise_index=0, platform=platform,
        privacy=SamplePrivacy(1.0), rng=jax.random.key(0),
    )  # fmt: skip
    np.testing.assert_allclose(loss, 1e6)


@pytest.mark.costly
def test_no_sample_makes_its_client_diverge():
    """That a client left the round would tell of the sample."""
    options = {"dtype": "float32", "validation_size": 0, "dp": "sample", "dp_clip": 1.0}
    federation = toy_federation(**options, diverging=3)
    _, (record,) = run_rounds(pfl.make_algorithm("fedavg"), federation, 1, scored=())
    assert not record["clients"]["diverged"].any()
