"""FLoRA against its reference: stacked adapters, merged in every round, of one rank or several."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import run_rounds
from fedjax_pfl.utils import keys
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import assert_losses, initial_model, sampled_federation
from tests.algorithms.lora import ADAPTERS, ALPHA, RANK, base_of
from tests.references import flora

RANKS = (3, 1, 4)


def ranks_of(case):
    """A client's rank is by its permanent id."""
    return np.array([RANKS[k % 3] for k in np.asarray(case.federation.data.ids)])


def base_and_draws(one):
    case = one.case
    drawn = [
        initial_model(case.federation, keys.of_round(case.key, "adapters", t))["params"]["hidden"]
        for t in range(case.rounds)
    ]
    given = {"base": base_of(case), "drawn": jax.tree.map(np.asarray, drawn)}
    if one.variant == "ranks":
        return {**given, "factor": 1.0, "ranks": ranks_of(case)}
    return {**given, "factor": ALPHA / RANK}


def assert_base_and_traffic(now):
    first = now.compared.options["base"]["kernel"]
    assert np.abs(now.wanted["base"] - first).max() > 1e-3
    one_rank = now.compared.variant != "ranks"
    now.assert_copies(np.outer(now.present, [one_rank, True]))  # of adapters, and of the head
    if one_rank:
        return assert_losses(now.record, now.case, "global", [now.wanted["whole"]] * 5)
    ranks, there, clients = ranks_of(now.case), now.present, now.clients
    own = 9 * ranks * there
    merged = min(4 * 5, own.sum())
    np.testing.assert_array_equal(clients["numbers_up"], own)
    np.testing.assert_array_equal(clients["rank"][there], ranks[there])
    np.testing.assert_array_equal(clients["numbers_down"], own + merged * there)


test_reference, test_contract = comparison(
    "flora",
    flora.run,
    options=ADAPTERS,
    variants={
        "one rank": {},
        "ranks": Variant(options={"lora_ranks": "3,1,4", "lora_rank": 4, "lora_alpha": 4.0}),
    },
    given=base_and_draws,
    states={"server": "global", "base.hidden": "base"},
    scores={"personalized": "whole"},
    copies=None,
    check=assert_base_and_traffic,
)


@pytest.mark.costly
def test_numbers_of_late_clients():
    """Both members' factors of rank 1, which are fewer numbers than the kernel's 20."""
    late = {"stragglers": {1: 1, 2: 1, 4: 1}}
    one = sampled_federation(lora_ranks="1", participation=1.0, **late)
    _, (record,) = run_rounds(pfl.make_algorithm("flora"), one, 1, scored=())
    np.testing.assert_array_equal(record["clients"]["numbers_up"], [9, 0, 0, 9, 0])
    np.testing.assert_array_equal(record["clients"]["numbers_down"], [27, 0, 0, 27, 0])
    for way in ("up", "down"):  # the head
        np.testing.assert_array_equal(record[way].sum(axis=1), [1, 0, 0, 1, 0])
