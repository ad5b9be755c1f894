"""FedProx against its reference, and the epochs of slow clients."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import assert_steps
from tests.references import fedprox


def algorithm(**settings):
    return pfl.make_algorithm("fedprox", settings)


def work_of(one):
    """Slow clients train fewer epochs, and count as all do: the reference takes these steps."""
    if "slow_fraction" not in one.settings:
        return {}
    return {"work": [record["clients"]["local_steps"].astype(int) for record in one.records]}


def assert_work(now):
    if "slow_fraction" not in now.settings:
        return assert_steps(now.record, now.cohort, now.batches())
    epochs = [3 * now.clients["local_steps"][i] / len(now.batches()[i]) for i in now.cohort]
    assert len(epochs) == 4 and epochs.count(3) == 2 and set(epochs) <= {1, 2, 3}


# Both the loss and the term: tools have been seen to overwrite either by the other.
test_reference, test_contract = comparison(
    "fedprox",
    fedprox.run,
    settings={"proximal_weight": 0.7},
    variants={
        "all epochs": {},
        "slow clients": Variant(
            {"slow_fraction": 0.5}, options={"participation": 0.8, "local_epochs": 3}
        ),
    },
    ours=("slow_fraction",),
    given=work_of,
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    steps=(),
    check=assert_work,
)


@pytest.mark.costly
def test_epochs_of_slow_clients():
    """Of the members present alone; halves are rounded to even, as the authors' code does."""
    order = np.array([8, 3, 0, 7, 2, 1, 4, 6, 5])
    here, there = (
        algorithm().prepare(toy_federation((4,) * 9, (2,) * 9, local_epochs=4, order=rows))
        for rows in (None, order)
    )

    def epochs(part, t, federation=here):
        ctx = pfl.Context(federation, jax.random.key(3), t, jnp.int32(1), None)
        cohort = replace(ctx.cohort_of(), mask=ctx.ids < 5)
        return replace(algorithm(), slow_fraction=part).epochs(replace(ctx, cohort=cohort))

    @jax.jit
    def often(part):
        return jax.vmap(lambda t: epochs(part, t))(jnp.arange(300))

    once, elsewhere = (jax.jit(partial(epochs, federation=one)) for one in (here, there))
    for t in range(3):  # whatever a client's row
        np.testing.assert_array_equal(elsewhere(0.5, t), once(0.5, t)[order])

    for part, count in ((0.1, 1), (0.3, 1), (0.5, 3), (0.7, 3), (1, 5)):
        drawn = np.asarray(often(part))
        slow = drawn < 4
        np.testing.assert_array_equal(slow[:, :5].sum(axis=1), count)
        shares = slow[:, :5].mean(axis=0)
        np.testing.assert_allclose(shares, count / 5, atol=0.12)
        apart = drawn[:, :5].max(axis=1, where=slow[:, :5], initial=0)
        apart = apart - drawn[:, :5].min(axis=1, where=slow[:, :5], initial=4)
        assert (apart > 0).any() == (count > 1)  # each draws its own number
        found, times = np.unique(drawn[:, :5][slow[:, :5]], return_counts=True)
        assert found.tolist() == [1, 2, 3]
        np.testing.assert_allclose(times / times.sum(), 1 / 3, atol=0.1)


def test_remarks():
    federation = toy_federation(local_epochs=2)
    assert algorithm().remarks(federation) == []
    messages = ["0.5 of a round's clients train fewer epochs"]
    assert algorithm(slow_fraction=0.5).remarks(federation) == messages
