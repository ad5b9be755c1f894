"""FedCross against its reference: dealing, partners, late members."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl.testing.toys import run_rounds, toy_federation
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import maker
from tests.references import fedcross

algorithm = maker("fedcross")


def dealt(one):
    """Per round, the member of each middleware model, as the library draws it."""
    rounds = []
    for t in range(one.case.rounds):
        cohort = one.case.cohort(t)
        order = cohort.order(keys.of_round(one.case.key, "dispatch", jnp.int32(t)))
        rounds.append(np.asarray(cohort.rows)[np.asarray(order)].tolist())
    return {"dealt": rounds}


def check_mixing(now):
    matrix, alpha = np.eye(now.case.num_clients), now.settings["alpha"]
    for i, j in now.wanted["partners"].items():
        matrix[i, i] = alpha
        matrix[i, j] += 1 - alpha
    if now.t < now.settings.get("warmup_rounds", 0):
        matrix[now.present] = now.present / now.present.sum()
    np.testing.assert_allclose(now.record["matrices"]["mixing"], matrix, 1e-9)


def check_late(one):
    """Models of late members wait, and cohorts have different sizes, of one member too."""
    if one.variant.startswith("late"):
        fewest, *_, most = sorted(map(len, one.case.cohorts))
        assert fewest < most and (fewest == 1) == (one.variant == "late lowest")


def late(settings, stragglers):
    options = {"participation": 1.0, "stragglers": stragglers, "rounds": 7, "scored": False}
    return Variant(settings, options=options)


test_reference, test_contract = comparison(
    "fedcross",
    fedcross.run,
    settings={"alpha": 0.7},
    variants={
        "lowest": {"warmup_rounds": 1},
        "in order": {"partner": "in_order", "alpha": 0.6},
        "highest": {"partner": "highest", "alpha": 0.8},
        "late in order": late({"partner": "in_order"}, {1: 1, 3: 2}),
        "late lowest": late({"warmup_rounds": 2}, {0: 1, 1: 1, 3: 2, 4: 1}),
    },
    given=dealt,
    states={"models": "models"},
    scores={"global": "global", "personalized": "global"},
    check=check_mixing,
    finish=check_late,
)


@pytest.mark.costly
def test_partners_follow_from_what_the_server_received():
    """The uploads of clients 0 and 3 become what they received, which has other neighbours."""
    for who, changed in ((0, True), (1, False), (3, True)):
        federations = (toy_federation(validation_size=0, withheld=one) for one in ((), (who,)))
        found = [run_rounds(algorithm(), one, 1, scored=())[1][0] for one in federations]
        mixing = [record["matrices"]["mixing"] for record in found]
        assert np.array_equal(*mixing) != changed
