"""FedRS against its reference, and its limit."""

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds
from tests.algorithms.harness import PATTERNS, Case, assert_steps, over, sampled_federation
from tests.references import fedrs

VARIANTS = {"shares": {}, "missing": {"alpha": 0.0, "factors": "missing"}}


def algorithm(**settings):
    return pfl.make_algorithm("fedrs", settings)


@over(PATTERNS, [("partial-map", "shares"), ("full-vmap", "missing")], VARIANTS)
def test_reference(pattern, variant):
    settings = VARIANTS[variant]
    case = Case(**PATTERNS[pattern])
    common = case.common()
    wanted = fedrs.run(case.initial(), case.clients(), 3, **common, **settings)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)


def test_without_a_restriction_it_is_fedavg():
    federation = sampled_federation()
    ours = algorithm(alpha=1)
    assert ours.remarks(federation) == ["alpha is 1: trained as FedAvg"]
    assert algorithm().remarks(federation) == []
    states, _ = run_rounds(ours, federation)
    wanted, _ = run_rounds(pfl.make_algorithm("fedavg"), federation)
    for state, other in zip(states, wanted, strict=True):
        assert_close(state.server, other.server, "server")
