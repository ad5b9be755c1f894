"""FedPer against its reference, and the layers that it shares."""

import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation
from tests.algorithms.comparison import Round, Variant, comparison
from tests.algorithms.harness import FourLayers
from tests.references import fedper

test_reference, test_contract = comparison(
    "fedper",
    fedper.run,
    variants={
        "head": {},
        "uniform two layers": Variant(
            {"personal_layers": 2, "weighting": "uniform"},
            {"personal": ("hidden_c", "head"), "weighting": "uniform"},
            {"model": FourLayers()},
        ),
    },
    joined="personalized",
    scores={"personalized": "personalized"},
    check=Round.assert_mean,
)


@pytest.mark.parametrize(("layers", "sizes"), [(1, [25, 0]), (0, [25, 18]), (2, [0, 0])])
def test_personal_layers_are_not_sent(layers, sizes):
    plan = pfl.make_algorithm("fedper", {"personal_layers": layers}).prepare(toy_federation()).plan
    assert (list(plan.blocks), plan.shared_block_sizes().tolist()) == (["fc_0", "head"], sizes)
