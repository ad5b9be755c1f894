"""Per-FedAvg's reference: the meta-gradient by differences, limits, short batches, adaptation."""

import numpy as np
import pytest

from tests.references import network, perfedavg
from tests.references.small import (
    ROUNDS,
    differences,
    flat,
)


def steps_of(setting, count, seed=5):
    """batches[t][i]: steps of `count` minibatches of 2 samples, the last ones short or empty."""
    rng = np.random.default_rng(seed)

    def epoch(own):
        order, width = rng.permutation(own), 2 * count
        blocks = [order[k : k + width] for k in range(0, len(order), width)]
        return [[block[2 * m : 2 * m + 2] for m in range(count)] for block in blocks]

    samples = [client["samples"] for client in setting["clients"]]
    return [[epoch(own) for own in samples] for _ in range(ROUNDS)]


def with_steps(setting, variant="first_order", **changes):
    batches = steps_of(setting, perfedavg.VARIANTS[variant])
    return {**setting, "batches": batches, "variant": variant, **changes}


@pytest.mark.parametrize("product", perfedavg.PRODUCTS)
def test_meta_gradient_is_that_of_the_loss_after_a_step(setting, product):
    """With the third minibatch equal to the first, of F(w) = f_2(w - alpha grad f_1(w))."""
    x, y, like, alpha = setting["x"], setting["y"], setting["initial"], 0.8
    first, second = np.arange(9, 13), np.arange(13, 19)

    def after_a_step(vector):
        model = network.unflat(vector, like)
        _, g = network.loss_and_gradient(model, x[first], y[first])
        model = network.subtract(model, network.scale(alpha, g))
        return network.loss_and_gradient(model, x[second], y[second])[0]

    numeric = differences(after_a_step, flat(like))
    whole = perfedavg.meta_gradient(like, [first, second, first], x, y, alpha, product)
    np.testing.assert_allclose(flat(whole), numeric, rtol=1e-5, atol=1e-8)
    simple = perfedavg.meta_gradient(like, [first, second], x, y, alpha)
    assert np.abs(flat(simple) - numeric).max() > 1e-3


def test_differences_are_near_the_exact_product(setting):
    common = with_steps(setting, "hessian_free")
    exact = perfedavg.run(**common)[-1]["global"]
    near = perfedavg.run(**common, product="differences")[-1]["global"]
    far = perfedavg.run(**common, product="differences", delta=0.3)[-1]["global"]
    gaps = [np.abs(flat(model) - flat(exact)).max() for model in (near, far)]
    assert 0.0 < gaps[0] < 1e-6 < 1e-4 < gaps[1]
