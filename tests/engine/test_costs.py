"""FLOPs against multiplications and additions counted by hand, and the papers' tables of costs."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine import costs
from fedjax_pfl.federation.optimizers import SGD


def federation(model, shape, num_classes=10, batch_size=20, clients=1, **options):
    """Clients with 20 random training samples each."""
    rng, count = np.random.default_rng(0), 24 * clients
    samples = rng.integers(0, 256, (count, *shape), np.uint8)
    labels = rng.integers(0, num_classes, count).astype(np.int32)
    dataset = pfl.dataset_from_arrays("noise", samples, labels, num_classes=num_classes)
    lists = {"train": np.split(np.arange(20 * clients), clients),
             "test": np.split(np.arange(20 * clients, count), clients),
             "validation": [np.arange(0)] * clients}  # fmt: skip
    partition = pfl.Partition.from_lists(**lists)
    return pfl.federate(dataset, partition, model, batch_size=batch_size, **options)


# Multiply-adds of one sample's forward pass, layer by layer.
MTFL = (30 * 30 * 32 * 27, 13 * 13 * 64 * 288, 2304 * 512, 512 * 10)
LENET = (24 * 24 * 16 * 25, 8 * 8 * 32 * 400, 512 * 120, 120 * 84, 84 * 10)
NETWORKS = {
    "softmax": ((28, 28, 1), (784 * 10,)),
    "mlp": ((28, 28, 1), (784 * 64, 64 * 10)),
    "pfedla_lenet": ((28, 28, 1), LENET),
    "mtfl_cnn": ((32, 32, 3), MTFL),
}


LARGE = (pytest.param(name, marks=pytest.mark.costly) for name in ("pfedla_lenet", "mtfl_cnn"))


@pytest.mark.parametrize("name", ["softmax", "mlp", *LARGE])
def test_steps_and_predictions_by_hand(name):
    """Backward costs twice the forward pass, but the gradient of the inputs is not needed.

    What is more than the products are biases, activations, pooling and normalization, and two
    operations on every parameter for the update.
    """
    shape, products = NETWORKS[name]
    fed = federation(name, shape)
    forward = 2 * sum(products)
    assert 1 <= costs.forward_flops(fed) / forward < 1.06
    step = 20 * (3 * forward - 2 * products[0]) + 2 * fed.plan.num_parameters
    assert 1 <= costs.step_flops(fed) / step < 1.06


def test_the_update_and_the_batch():
    """Momentum takes two operations a parameter more; samples cost the same each."""
    fed = partial(federation, "mlp", (6, 6, 1))
    plain, count = costs.step_flops(fed()), fed().plan.num_parameters
    assert costs.step_flops(fed(optimizer=SGD(momentum=0.9))) - plain == 2 * count
    five, ten = (costs.step_flops(fed(batch_size=b)) for b in (5, 10))
    assert plain - ten == pytest.approx(2 * (ten - five), rel=1e-3)
    # Larger than any client, a batch is cut to what the largest client fills.
    assert costs.step_flops(fed(batch_size=500)) == plain


def test_clients_and_their_execution_change_nothing():
    plain = costs.step_flops(federation("mlp", (6, 6, 1)))
    many = federation("mlp", (6, 6, 1), clients=3, client_execution="vmap", local_epochs=7)
    assert costs.step_flops(many) == plain


def test_an_extra_loss_is_counted():
    plain = federation("mlp", (6, 6, 1))
    more = federation("mlp", (6, 6, 1), extra_loss=pfl.training.WeightDistribution(1.0))
    assert costs.step_flops(more) > costs.step_flops(plain)


class Repeated(nn.Module):
    """One square layer applied seven times, in a loop or written out."""

    loop: bool

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[1],) * 2)
        if self.loop:
            x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(x @ kernel), None), x, None, length=7)
        for _ in range(0 if self.loop else 7):
            x = jnp.tanh(x @ kernel)
        return nn.Dense(10)(x)


def test_loops_in_a_network_are_multiplied():
    """XLA's own analysis counts the body of a loop once."""
    loop, written_out = (federation(Repeated(loop), (6, 6, 1)) for loop in (True, False))
    for count in (costs.step_flops, costs.forward_flops):
        assert count(loop) == pytest.approx(count(written_out), rel=0.06)


def test_loops_within_loops_and_loops_without_a_known_end():
    square = jax.ShapeDtypeStruct((16, 16), jnp.float32)

    def inner(x, unroll):
        return jax.lax.scan(lambda x, _: (x @ x, None), x, None, length=5, unroll=unroll)[0]

    def outer(x, unroll):
        return jax.lax.fori_loop(0, 3, jax.jit(lambda i, x: inner(x, unroll)), x)

    for unroll in (1, 2, 5):
        once = costs.flops(lambda x, unroll=unroll: inner(x, unroll), square)
        assert once == pytest.approx(5 * 2 * 16**3, rel=0.01)
    assert costs.flops(lambda x: outer(x, 1), square) == pytest.approx(15 * 2 * 16**3, rel=0.01)
    endless = costs.flops(lambda x: jax.lax.while_loop(jnp.any, inner_of_one, x), square)
    assert np.isnan(endless)


def inner_of_one(x):
    return x @ x
