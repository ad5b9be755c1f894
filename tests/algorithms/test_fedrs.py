"""FedRS against its reference."""

from tests.algorithms.comparison import comparison
from tests.references import fedrs

test_reference, test_contract = comparison(
    "fedrs",
    fedrs.run,
    variants={"shares": {"alpha": 0.3}, "missing": {"alpha": 0.0, "factors": "missing"}},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
)
