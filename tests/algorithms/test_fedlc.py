"""FedLC against its reference, and its new clients."""

from tests.algorithms.comparison import comparison
from tests.references import fedlc


def new_clients(one, made):
    """They train with margins from the server's model."""
    batches, (*_, rate) = one.newcomers()
    setting = one.setting.but(
        initial=one.wanted[-1]["global"], rounds=1, batches=[batches], learning_rate=[rate]
    )
    return [
        fedlc.run(setting.but(cohorts=[[i]]), **one.options)[0]["global"]
        for i in range(one.case.num_clients)
    ]


test_reference, test_contract = comparison(
    "fedlc",
    fedlc.run,
    variants={"all": {"tau": 0.5}, "others": {"tau": 0.02, "denominator": "others"}},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    new_clients=new_clients,
)
