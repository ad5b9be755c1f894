"""The numbers of each block that clients send."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import OverflowingNormed, toy_federation
from tests.algorithms.norms import ConvNorm

NORMED = {"model": OverflowingNormed(3, (5,))}
CONVOLUTION = {"model": ConvNorm()}


@pytest.mark.parametrize(
    ("name", "settings", "options", "sizes"),
    [
        ("fedper", {}, {}, {"fc_0": 25, "head": 0}),
        ("fedper", {"personal_layers": 0}, {}, {"fc_0": 25, "head": 18}),
        ("fedper", {"personal_layers": 2}, {}, {"fc_0": 0, "head": 0}),
        ("lg_fedavg", {}, {}, {"fc_0": 0, "head": 18}),
        ("lg_fedavg", {"global_layers": 0}, {}, {"fc_0": 0, "head": 0}),
        ("lg_fedavg", {"global_end": "first"}, {}, {"fc_0": 25, "head": 0}),
        ("lg_fedavg", {"global_end": "first", "global_layers": 2}, {}, {"fc_0": 25, "head": 18}),
        ("fedrep", {}, {}, {"fc_0": 25, "head": 0}),  # a published form sends heads
        ("fedrod", {}, {}, {"fc_0": 25, "head": 18, "personal_head": 0}),
        ("fedbn", {}, NORMED, {"fc_0": 25, "bn": 0, "head": 18}),
        ("fedbabu", {}, CONVOLUTION, {"conv": 20, "bn": 8, "head": 0}),
        ("fedbabu", {}, CONVOLUTION | {"batch_norm": "local"}, {"conv": 20, "bn": 0, "head": 0}),
        ("fedem", {}, {}, {"fc_0": 75, "head": 54, "mixture": 0}),
        ("fedcp", {}, {}, {"fc_0": 25, "head": 18, "policy": 80, "personal_head": 0, "context": 0}),
        ("gpfl", {}, {}, {"fc_0": 25, "head": 0, "valve/beta": 40, "valve/gamma": 40,
                          "class_embeddings": 15, "class_shares": 0}),
        ("pfedhn", {}, {}, {"fc_0": 25, "head": 18}),
        ("pfedhn", {"local_head": True}, {}, {"fc_0": 25, "head": 0}),
    ],
)  # fmt: skip
def test_shared_blocks(name, settings, options, sizes):
    plan = pfl.make_algorithm(name, settings).prepare(toy_federation(**options)).plan
    assert dict(zip(plan.blocks, plan.shared_block_sizes().tolist(), strict=True)) == sizes
