"""Networks in training under a client axis: dropout, and texts."""

import jax
import numpy as np
import pytest

from fedjax_pfl.models.networks import CNN
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
