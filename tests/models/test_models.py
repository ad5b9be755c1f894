"""Networks: fast layers equal the usual ones, sizes are the papers', users' models run."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.models.layers import Dense, initializers, max_pool
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.utils import keys

KEY = jax.random.key(0)


@pytest.mark.parametrize("size", [2, 3])
def test_gradient_of_max_pool_goes_to_the_first_of_equals(size):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (2, 7, 6, 3)).astype(np.float32)  # few values: many ties
    weights = rng.normal(size=(2, 7 // size, 6 // size, 3)).astype(np.float32)
    wanted = np.zeros_like(x)
    for b, i, j, c in np.ndindex(*weights.shape):
        tile = x[b, i * size : (i + 1) * size, j * size : (j + 1) * size, c]
        row, column = np.unravel_index(np.argmax(tile), tile.shape)
        wanted[b, i * size + row, j * size + column, c] = weights[b, i, j, c]
    got = jax.jit(jax.grad(lambda x: jnp.sum(weights * max_pool(x, size))))(x)
    np.testing.assert_array_equal(got, wanted)


def test_torch_initialization():
    model = jax.jit(Dense(400).init)(KEY, np.zeros((1, 25), np.float32))["params"]
    kernel, bias = np.asarray(model["kernel"]), np.asarray(model["bias"])
    for values in (kernel, bias):
        assert np.abs(values).max() <= 0.2 and np.abs(values).max() > 0.198
    assert abs(kernel.std() - 0.2 / 3**0.5) < 0.002 and abs(kernel.mean()) < 0.004


def test_torch_initialization_draws_the_numbers_of_a_shaped_draw():
    draw, shape = initializers("torch", 16)[0], (3, 4, 5)
    uniform = partial(jax.random.uniform, shape=shape, minval=-0.25, maxval=0.25)
    kernel, shaped = jax.jit(lambda key: (draw(key, shape), uniform(key)))(KEY)
    np.testing.assert_array_equal(kernel, shaped)


def test_flax_initialization():
    model = jax.jit(Dense(400, "flax").init)(KEY, np.zeros((1, 25), np.float32))["params"]
    assert not np.asarray(model["bias"]).any()
    assert abs(np.asarray(model["kernel"]).std() - 0.2) < 0.01


def linear():
    """A pair (init, apply)."""

    def init(key, inputs):
        kernel = 0.1 * jax.random.normal(key, (inputs.shape[-1], 3))
        return {"kernel": kernel, "bias": jnp.zeros(3)}

    return init, lambda params, x: x @ params["kernel"] + params["bias"]


class Everything(nn.Module):
    """Dropout and batch-norm; takes the mask of valid samples too."""

    @nn.compact
    def __call__(self, x, train, valid=None):
        x = nn.Dense(6)(x)
        mask = None if valid is None else valid[:, None]
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x, mask=mask)
        x = nn.Dropout(0.5, deterministic=not train)(nn.relu(x))
        return nn.Dense(3, name="head")(x)


@pytest.mark.costly
@pytest.mark.parametrize("model", [linear(), Everything()], ids=["pair", "dropout-and-norm"])
def test_users_models_run(model):
    options = {"dtype": "float32", "batch_norm": "affine_shared", "validation_size": 0}
    federation = toy_federation(model=model, **options)
    result = pfl.simulate(pfl.make_algorithm("fedavg"), federation, 2, chunk=2)
    assert result.diverged() == []
    loss = result.scores["personalized/test/loss"][0, 0]
    assert np.isfinite(loss[:, :4]).all() and np.isnan(loss[:, 4]).all()
    trained = result.final.models()["personalized"]
    if isinstance(trained, pfl.Broadcast):
        assert jax.tree.map(jnp.shape, trained.model) == {
            "params": {"kernel": (1, 4, 3), "bias": (1, 3)}
        }
    else:  # each client has statistics of its own; all else is the server's
        mean = np.asarray(trained["batch_stats"]["BatchNorm_0"]["mean"])
        assert mean.shape == (1, 5, 6) and len(np.unique(mean[0].round(5), axis=0)) == 5
        head = np.asarray(trained["params"]["head"]["kernel"])
        assert (head == head[:, :1]).all()


def test_batch_norm_statistics_leave_padding_out():
    task = toy_federation(model=Everything(), dtype="float32").task
    model = jax.jit(task.initial_model)(KEY, np.zeros((1, 4), np.float32))
    inputs = np.arange(12, dtype=np.float32).reshape(3, 4)
    padded = np.concatenate([inputs, np.full((2, 4), 1e3, np.float32)])
    labels = np.array([0, 1, 2, 0, 0])
    rng = jax.random.key(1)
    full = pfl.training.Batch(inputs, labels[:3], np.ones(3, bool))
    mask = np.array([True] * 3 + [False] * 2)
    statistics = jax.jit(lambda batch: task.loss(model, batch, rng)[1]["batch_stats"])
    seen = statistics(full), statistics(pfl.training.Batch(padded, labels, mask))
    for a, b in zip(*map(jax.tree.leaves, seen), strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)


def test_loss_is_the_mean_over_valid_samples():
    federation = toy_federation(model=linear(), dtype="float32")
    model = jax.jit(federation.initial_model)(keys.derive(KEY, "init"))
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    y = np.array([0, 1, 2, 0])
    logits = np.asarray(jax.jit(federation.task.predict)(model, x), np.float64)
    wanted = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), y]
    loss = jax.jit(lambda batch: federation.task.loss(model, batch)[0])
    some = loss(pfl.training.Batch(x, y, np.array([True, True, False, True])))
    np.testing.assert_allclose(some, wanted[[0, 1, 3]].mean(), 1e-5)
    assert loss(pfl.training.Batch(x, y, np.zeros(4, bool))) == 0


def federate(model):
    return toy_federation(model=model, dtype="float32")


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_channels_come_last(shape):
    with pytest.raises(pfl.InputError, match=r"x\.transpose\(0, 2, 3, 1\) puts them last\.$"):
        pfl.models.make_model("cnn", shape, 10)


def good_init(key, inputs):
    return {"w": jnp.zeros((4, 3))}


def silent(params, x):
    raise ValueError


class Switched(nn.Module):
    @nn.compact
    def __call__(self, x, training=False):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not training)(x))


class Needy(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Switched(), r"^__call__ takes 'training', which nothing sets: name it 'train' \(true wh"),
        (Needy(), "^__call__ takes 'deterministic', which nothing sets: name it 'train'"),
        ("cnm", r"Unknown model 'cnm'. Did you mean 'cnn'\? One of your own is known once"),
        ("cnn", "Model 'cnn' takes images .* Use 'mlp'"),
        (
            3,
            r"model must be a flax.linen, NNX or Equinox module, .* a pair .* also a name, got 3\.",
        ),
        ((good_init,), r"got \(<function"),
        (
            (lambda key, x: {"w": jnp.zeros((4, 3), int)}, lambda p, x: x @ p["w"]),
            r"Parameter \['w'\] of the model must be of real numbers, got 'int",
        ),
        (nn.Dense(5), r"must return logits \[batch, 3\] .* got \[2, 5\] for a batch of 2"),
        (nn.Conv(3, (3, 3, 3)), r"The model can't take samples of shape \(4,\): "),
        (
            (good_init, lambda p, x: x @ p["v"]),
            r"The model can't take samples of shape \(4,\): 'v'",
        ),
        ((good_init, silent), "can't take samples"),
        ((good_init, lambda p, x: (x @ p["w"], x)), "must return logits"),
    ],
)
def test_bad_models_get_one_sentence(model, message):
    with pytest.raises(InputError, match=message) as error:
        federate(model)
    assert "\n" not in str(error.value)


def test_models_with_lists_are_refused():
    class Widths(nn.Module):
        width: object

        def __call__(self, x):
            return x[:, :3]

    with pytest.raises(InputError, match=r"model must be hashable \(tuples for lists\)"):
        federate(Widths(np.zeros(3)))


def test_parameters_may_be_a_single_array():
    federate((lambda key, x: jnp.zeros((4, 3)), lambda w, x: x @ w))


@pytest.mark.parametrize("dtype", ["int32", "float31"])
def test_bad_dtypes(dtype):
    with pytest.raises(InputError, match="dtype"):
        toy_federation(dtype=dtype)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_float64_without_x64_is_refused():
    with pytest.raises(InputError, match="x64"):
        toy_federation(dtype="float64")


def test_images_reach_the_cnn():
    x = np.zeros((4, 8, 8), np.uint8)
    dataset = dataset_from_arrays("tiny", x, np.arange(4), num_classes=4)
    partition = pfl.Partition.from_lists([[0, 1]], [[2, 3]])
    federation = pfl.federate(dataset, partition, "cnn")
    assert federation.plan.blocks == ("conv_0", "conv_1", "fc", "head")
    # 3x3x1x16+16, 3x3x16x32+32, 2x2x32x64+64, 64x4+4
    assert federation.plan.shared_block_sizes().tolist() == [160, 4640, 8256, 260]
