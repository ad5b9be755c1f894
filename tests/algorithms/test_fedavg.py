"""FedAvg against its reference."""

from tests.algorithms.comparison import Round, comparison
from tests.references import fedavg

test_reference, test_contract = comparison(
    "fedavg",
    fedavg.run,
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    check=Round.assert_mean,
)
