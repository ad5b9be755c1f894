"""What comparisons of algorithms with one Alice share."""

import numpy as np

from tests.algorithms.harness import assert_losses, assert_steps

# Of the six cohorts of three, client 0 is absent from the second and the fifth.
PATTERNS = {
    "partial-map": {"rounds": 6, "participation": 0.6},
    "full-vmap": {"client_execution": "vmap", "scored": False},
    "full-map": {},
    "partial-vmap": {"rounds": 6, "participation": 0.6, "client_execution": "vmap"},
}


def row_of_alice(one):
    """The row of Alice, whom the algorithm knows by her permanent id."""
    ids = np.asarray(one.case.federation.data.ids)
    return int(np.flatnonzero(ids == one.algorithm.alice)[0])


def assert_alices(now, copies):
    """Hers is the only model that is scored, and members work in her rounds alone."""
    alice = row_of_alice(now.compared)
    models = [now.wanted["alice"]] * now.case.num_clients
    assert_losses(now.record, now.case, "personalized", models, alice=alice)
    here = now.present[alice]
    now.assert_copies(copies * here * now.present)
    assert_steps(now.record, now.cohort if here else [], now.batches())
