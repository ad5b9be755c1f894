"""Convolutions with fewer products: equal to the definition, values and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.engine.costs import flops
from fedjax_pfl.models import layers
from fedjax_pfl.models.kernels import winograd
from fedjax_pfl.models.kernels.forms import by_definition
from fedjax_pfl.models.kernels.winograd import POINTS, tile, transforms

CASES = [(m, taps) for taps in range(2, len(POINTS) + 1) for m in range(2, len(POINTS) + 3 - taps)]


def drawn(*shapes, dtype="float64"):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def with_gradients(fn, x, kernel, seed):
    """[out, its gradients] of a function, in a trace."""
    out, back = jax.vjp(fn, x, kernel)
    return [out, *back(seed)]


def plain(x, kernel):
    """The convolution as products of patches."""
    return layers.patches(x, kernel.shape[:2]) @ kernel.reshape(-1, kernel.shape[3])


@pytest.mark.parametrize(("m", "taps"), CASES)
def test_transforms_are_a_correlation(m, taps):
    inputs, weights, outputs = (np.array(part) for part in transforms(m, taps))
    rng = np.random.default_rng(m)
    x, g = rng.normal(size=m + taps - 1), rng.normal(size=taps)
    wanted = [g @ x[i : i + taps] for i in range(m)]
    np.testing.assert_allclose(outputs @ ((weights @ g) * (inputs @ x)), wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("m", "width", "height"),
    [
        (2, 5, 5),
        (3, 12, 5),
        (4, 13, 8),
        *(
            pytest.param(*case, marks=pytest.mark.costly)
            for case in ((2, 13, 8), (3, 9, 4), (4, 12, 8))
        ),
    ],
)
def test_values_and_gradients(m, width, height):
    """Against NumPy's sum over the definition, for widths that m divides and others."""
    with jax.enable_x64(True):
        x, kernel = drawn((3, height, width, 2), (4, 5, 2, 3))
        wanted = np.zeros((3, height - 3, width - 4, 3))
        for i in range(4):
            for j in range(5):
                part = np.asarray(x)[:, i : i + height - 3, j : j + width - 4]
                wanted += part @ np.asarray(kernel)[i, j]
        (seed,) = drawn(wanted.shape)

        @jax.jit
        def both(*given):
            quick = partial(winograd.convolve, m=m)
            return [with_gradients(fn, *given) for fn in (quick, plain)]

        ours, theirs = both(x, kernel, seed)
        np.testing.assert_allclose(ours[0], wanted, atol=1e-11)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.mark.parametrize(
    ("m", "taps", "kh"), [(4, 5, 5), (3, 5, 5), (6, 3, 3), (4, 3, 3), (2, 7, 7)]
)
def test_rounding_in_float32(m, taps, kh):
    """Within four times that of the plain products, both against float64."""
    shapes = ((4, 16, 16, 32), (kh, taps, 32, 32))
    x, kernel = drawn(*shapes, dtype="float32")

    with jax.enable_x64(True):

        @jax.jit
        def three(x, kernel):
            exact = plain(*(v.astype("float64") for v in (x, kernel)))
            return exact, winograd.convolve(x, kernel, m), plain(x, kernel)

        exact, *rounded = (np.asarray(out, np.float64) for out in three(x, kernel))
    errors = [np.sqrt(np.mean((out - exact) ** 2) / np.mean(exact**2)) for out in rounded]
    assert 0 < errors[0] < 4 * errors[1]


def test_where_it_is_used():
    image, kernel = (10, 12, 12, 32), (5, 5, 32, 64)
    assert tile(image, kernel, 1, "float32") == 4  # 8 products for 4 outputs
    assert tile((10, 14, 14, 32), kernel, 1, "float32") == 4  # 24 instead of 50
    assert tile((10, 18, 18, 32), (3, 3, 32, 32), 1, "float64") > 1
    for given in (
        ((10, 28, 28, 1), (5, 5, 1, 32), 1, "float32"),  # a single channel
        (image, kernel, 2, "float32"),
        (image, kernel, 1, "bfloat16"),
        (image, (1, 1, 32, 64), 1, "float32"),
        ((4, 6, 6, 512), (3, 3, 512, 512), 1, "float32"),  # fewer rows than taps are worth
        ((10, 12, 5, 32), kernel, 1, "float32"),  # one output
    ):
        assert tile(*given) == 1
    with by_definition():
        assert tile(image, kernel, 1, "float32") == 1
    assert tile(image, kernel, 1, "float32") == 4


@pytest.mark.parametrize("counted_first", [False, True])
def test_a_compiled_function_is_counted_by_definition_and_stays_quick(counted_first):
    """JAX's caches know which of the two a function was traced for."""
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 12, 12, 16), (5, 5, 16, 16))]
    convolve = jax.jit(lambda x, kernel: layers.convolve(x, kernel))

    def used():
        return "custom_vjp" in str(jax.make_jaxpr(convolve)(*shapes))

    assert counted_first or used()
    counted = flops(convolve, *shapes)
    assert counted >= 2 * 4 * 8 * 8 * 25 * 16 * 16
    assert used()


def test_under_a_client_axis():
    with jax.enable_x64(True):
        x, kernels = drawn((4, 2, 9, 9, 16), (4, 3, 3, 16, 16))
        many = jax.jit(jax.vmap(layers.convolve))(x, kernels)
        one = jax.jit(layers.convolve)
        for i in range(4):
            np.testing.assert_allclose(many[i], one(x[i], kernels[i]), atol=1e-11)
