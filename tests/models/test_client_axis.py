"""Networks in training and under a client axis: dropout, texts, residual and deep ones."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.models.layers import global_mean
from fedjax_pfl.models.networks import CNN, DLA
from fedjax_pfl.models.resnet import ResidualBlock
from fedjax_pfl.models.task import LinenTask
from fedjax_pfl.testing.toys import assert_close
from fedjax_pfl.utils.errors import InputError
from tests.models.small import small_federation, trained


@pytest.mark.costly
def test_dropout_masks_belong_to_permanent_ids():
    with jax.enable_x64(True):
        net = CNN(3, (), hidden=5, dropout=0.5)
        models = trained(small_federation(net, client_execution="map"))
        order = np.array([2, 0, 1])
        moved = trained(small_federation(net, order, client_execution="vmap"))
        assert_close(moved, jax.tree.map(lambda x: x[order], models), "other rows, vmap")


def test_texts_need_a_network_for_texts():
    with jax.enable_x64(True), pytest.raises(InputError, match="takes no texts"):
        small_federation("mlp", tokens=True)


class OneBlock(nn.Module):
    """A residual block of stride 2 and a mean: enough to stand for the deep networks."""

    @nn.compact
    def __call__(self, x, train=False, valid=None):
        return global_mean(ResidualBlock(3, 2)(x, train, valid))


@pytest.mark.costly
@pytest.mark.parametrize(
    "net",
    [
        OneBlock(),
        DLA(3, (2, 2), ((3, 1, 1), (4, 2, 2))),
    ],
    ids=["block", "dla"],
)
def test_deep_networks_are_the_same_in_lanes(net):
    task = LinenTask(net, dtype="float64")
    valid = np.array([[True, True], [True, False]])
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(1), (2, 2, 6, 6, 1))
        models = jax.jit(jax.vmap(task.initial_model))(jax.random.split(jax.random.key(0)), x)

        def slope(model, x, valid):
            def loss(params):
                logits, new, _ = task.apply({**model, "params": params}, x, True, None, valid)
                return jnp.sum(jnp.where(valid[:, None], logits**2, 0)), new

            return jax.grad(loss, has_aux=True)(model["params"])

        both = jax.jit(jax.vmap(slope))(models, x, valid)
        for lane in (0, 1):
            one = jax.jit(slope)(jax.tree.map(lambda m, i=lane: m[i], models), x[lane], valid[lane])
            assert_close(jax.tree.map(lambda b, i=lane: b[i], both), one, f"lane {lane}")
