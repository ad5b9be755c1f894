"""The SPFL paper's Per-FedAvg against its reference."""

import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_steps,
    over,
)
from tests.references import perfedavg_spfl


@over(PATTERNS, [("partial-map", 2), ("full-vmap", 3)], (2, 3))
def test_reference(pattern, variant):
    """Two steps on a minibatch unless told."""
    case, settings = Case(**PATTERNS[pattern]), {} if variant == 2 else {"local_updates": variant}
    common = case.common()
    wanted = perfedavg_spfl.run(case.initial(), case.clients(), 3, **common, steps=variant)
    states, records = case.run_rounds(pfl.make_algorithm("perfedavg_spfl", settings))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        everywhere = [models["global"]] * case.num_clients
        assert_losses(record, case, "global", everywhere)
        assert_losses(record, case, "personalized", everywhere)
        assert set(np.unique(record["up"])) <= {0, 1}
        assert_steps(record, case.cohorts[t], *variant * [common["batches"][t]])
