"""What comparisons of algorithms with one Alice share."""

import numpy as np

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
