"""FedRS against its reference."""

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation
from tests.algorithms.comparison import comparison
from tests.references import fedrs

test_reference, test_contract = comparison(
    "fedrs",
    fedrs.run,
    variants={"shares": {"alpha": 0.3}, "missing": {"alpha": 0.0, "factors": "missing"}},
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
)


def test_remark_on_alpha_one():
    federation = toy_federation()
    plain, without = (pfl.make_algorithm("fedrs", {"alpha": a}) for a in (0.5, 1))
    assert plain.remarks(federation) == []
    assert without.remarks(federation) == ["alpha is 1: trained as FedAvg"]
