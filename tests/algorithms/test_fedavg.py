"""FedAvg against its reference."""

import jax

import fedjax_pfl as pfl
from tests.algorithms.harness import PATTERNS, QUICK, Case, assert_losses, assert_models, over
from tests.references import fedavg


@over(PATTERNS, QUICK)
def test_fedavg(pattern):
    case = Case(**PATTERNS[pattern])
    wanted = fedavg.run(case.initial(), case.clients(), 3, **case.common())
    states, records = case.run_rounds(pfl.make_algorithm("fedavg"))
    for state, record, models in zip(states[1:], records, wanted, strict=True):
        everywhere = [models["global"]] * case.num_clients
        assert_models(jax.tree.map(lambda x: x[None], state.server), [models["global"]], "global")
        assert_losses(record, case, "global", everywhere)
        assert_losses(record, case, "personalized", everywhere)
