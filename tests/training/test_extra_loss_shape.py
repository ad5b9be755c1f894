"""An extra loss that is no single number is refused by its name."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import states_of, toy_federation
from fedjax_pfl.utils.structs import struct


def of_every_sample(params, batch, broadcast, client):
    return batch.valid * 1.0


@struct
class Weighed(pfl.ALGORITHMS["fedavg"]):
    name = "weighed"

    def local_update(self, ctx, state, received, **options):
        return super().local_update(ctx, state, received, extra_loss=of_every_sample, **options)


def test_an_extra_loss_of_every_sample():
    federation = toy_federation(dtype="float32", validation_size=0)
    with pytest.raises(pfl.InputError, match=r"extra loss of_every_sample must be a single number"):
        states_of(Weighed(), federation, 1)
