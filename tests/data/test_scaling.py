"""Input scalings: fixed, published, per channel."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.partitions.rule_registry import make_partition
from fedjax_pfl.data.scaling import SCALINGS, check_stored, input_scaling
from fedjax_pfl.data.sources.source_registry import load_dataset
from fedjax_pfl.federation.build import federate
from fedjax_pfl.utils.errors import InputError


def scaled(name, dataset):
    scale, shift = input_scaling(name, dataset)
    assert scale.dtype == shift.dtype == np.float32
    assert scale.ndim == shift.ndim == 1
    return dataset.train_x * scale + shift


def test_fixed_scalings():
    data = dataset_from_arrays("a", np.array([[0, 51, 255, 16]], np.uint8), [0])
    np.testing.assert_allclose(scaled("half", data), [[-1, -0.6, 1, 16 / 127.5 - 1]], atol=1e-6)
    np.testing.assert_allclose(scaled("unit", data), [[0, 0.2, 1, 16 / 255]], atol=1e-6)
    np.testing.assert_allclose(scaled("digits", data)[0, 3], 1)
    np.testing.assert_array_equal(scaled("raw", data), data.train_x)
    np.testing.assert_array_equal(scaled("default", data), scaled("half", data))


# Mean and deviation of x/255 for each channel, as the papers and their codes print them.
PUBLISHED = {
    "mnist": ([0.1307], [0.3081]),
    "cifar": ([0.4914, 0.4822, 0.4465], [0.247, 0.243, 0.261]),
    "feddwa_cifar": ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]),
    "half": ([0.5], [0.5]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_scalings(name):
    mean, deviation = PUBLISHED[name]
    x = np.arange(0, 256, 15, np.uint8)[:, None, None, None] * np.ones(len(mean), np.uint8)
    data = dataset_from_arrays("a", x, np.zeros(len(x), int))
    np.testing.assert_allclose(scaled(name, data), (x / 255 - mean) / deviation, atol=1e-6)


def test_default_of_digits_is_sixteenths():
    digits = load_dataset("digits")
    assert scaled("default", digits).max() == 1


@pytest.mark.parametrize("offset", [0, 1e4])
def test_standard_is_per_channel_and_guards_constants(offset):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2500, 2, 2, 3)) * [1, 5, 0] + [0, 7, 3] + offset
    data = dataset_from_arrays("a", x, np.zeros(2500, int), x[:5] * 100, np.zeros(5, int))
    z = scaled("standard", data)
    np.testing.assert_allclose(z.mean((0, 1, 2), dtype=float), 0, atol=2e-3)
    np.testing.assert_allclose(z.std((0, 1, 2), dtype=float), [1, 1, 0], atol=2e-3)


def test_standard_does_not_blow_up_rounding_noise():
    x = np.full((100, 1), 1e4, np.float32)
    x[::2] = np.nextafter(x[0, 0], np.float32(2e4))
    z = scaled("standard", dataset_from_arrays("a", x, np.zeros(100, int)))
    assert np.abs(z).max() < 0.01


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_begins_after_scaling(dtype):
    years = np.arange(1990, 2011, dtype=np.float32)[:, None]
    dataset = dataset_from_arrays("a", years, np.zeros(21, int), input_scaling="standard")
    partition = make_partition("iid", dataset, 1, 0)
    data = federate(dataset, partition, "softmax").data
    seen = data.inputs(0, jnp.asarray(years), dtype)
    wanted = data.inputs(0, jnp.asarray(years), "float32")
    assert seen.dtype == dtype
    np.testing.assert_allclose(seen.astype(jnp.float32), wanted, rtol=4e-3)


def test_unknown_scaling():
    assert "standard" in SCALINGS
    data = dataset_from_arrays("a", np.zeros((1, 2)), [0])
    with pytest.raises(
        InputError, match=r"Unknown input scaling 'standart'. Did you mean 'standard"
    ):
        input_scaling("standart", data)


def test_every_scaling_is_named_where_it_is_chosen():
    names = federate.__doc__.partition("input_scaling: ")[2].partition("client_ids")[0]
    assert set(re.findall("'([a-z_]+)'", names)) == set(SCALINGS)


@pytest.mark.parametrize("name", ["half", "unit", "mnist"])
def test_scaled_samples_are_not_divided_by_255_once_more(name):
    x = np.random.default_rng(0).uniform(-1, 1, (3000, 2, 2, 1)).astype(np.float32)
    labels = np.zeros(len(x), int)
    with pytest.raises(InputError, match=f"'a' are in -1..1, and input scaling '{name}' would"):
        input_scaling(name, dataset_from_arrays("a", x, labels))
    assert np.isfinite(scaled("raw", dataset_from_arrays("a", x, labels))).all()
    x[-1] = 2  # any value beyond them says that these are not fractions of 1
    input_scaling(name, dataset_from_arrays("a", x, labels))
    dark = np.round(np.abs(np.clip(x, 0, 1)))  # bytes, as floats
    input_scaling(name, dataset_from_arrays("a", dark, labels))


def test_check_stored_refuses_images_that_are_scaled_already():
    x = np.random.default_rng(0).uniform(0, 1, (3, 2, 2, 1))
    for wrong in (x, 255 * x, np.round(x), np.round(x * 255) + 100, np.full_like(x, -1)):
        with pytest.raises(InputError, match=r"whole numbers in 0\.\.255, as the data set stores"):
            check_stored(wrong, np.dtype(np.uint8))
    for right in (np.round(254 * x), np.round(x).astype(int), np.zeros_like(x)):
        check_stored(right, np.dtype(np.uint8))
    check_stored(x, np.dtype(np.float32), fractions=True)
    with pytest.raises(InputError, match=r"in -1\.\.1, as the data set stores them, got values up"):
        check_stored(np.round(255 * x).astype(np.uint8), np.dtype(np.float32), fractions=True)
    with pytest.raises(InputError, match="Samples must be finite, got '1 NaN or infinite values'"):
        check_stored(np.array([[0.0, np.nan]]), np.dtype(np.float32))
