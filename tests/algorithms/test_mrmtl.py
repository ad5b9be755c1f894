"""MR-MTL against its reference; private layers and new clients."""

import jax
import numpy as np
import pytest

from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import mrmtl

algorithm = maker("mrmtl")


def new_clients(one, made):
    server, (batches, given) = one.wanted[-1]["global"], one.newcomers()
    return [mrmtl.own_training(server, server, own, *given, 0.7) for own in batches]


test_reference, test_contract = comparison(
    "mrmtl",
    mrmtl.run,
    settings={"proximal_weight": 0.7},
    variants={"size": {}, "uniform": {"weighting": "uniform"}},
    states={"server": "global", "own": "personalized"},
    scores={"global": "global", "personalized": "personalized"},
    new_clients=new_clients,
)


@pytest.mark.costly
def test_mrmtl_does_not_pull_private_layers():
    federation = toy_federation((6,), (3,), share="body", batch_size=6, local_steps=2)
    pulled, free = (states_of(algorithm(proximal_weight=p), federation, 1)[1] for p in (0.7, 0.0))
    assert_close(pulled.server["params"]["fc_0"], jax.tree.map(
        lambda leaf: leaf[0], pulled.own["params"]["fc_0"]), "body")  # fmt: skip
    assert not np.array_equal(
        pulled.own["params"]["fc_0"]["kernel"], free.own["params"]["fc_0"]["kernel"]
    )
    assert not jax.tree.leaves(pulled.server["params"]["head"])
