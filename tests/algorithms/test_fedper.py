"""FedPer against its reference, and the layers that it shares."""

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
