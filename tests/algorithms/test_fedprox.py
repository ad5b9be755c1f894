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
from tests.algorithms.harness import assert_steps, maker
from tests.references import fedprox

algorithm = maker("fedprox")


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

    def epochs(part, t, federation):
        ctx = pfl.Context(federation, jax.random.key(3), t, jnp.int32(1), None)
        cohort = replace(ctx.cohort_of(), mask=ctx.ids < 5)
        return replace(algorithm(), slow_fraction=part).epochs(replace(ctx, cohort=cohort))

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0))
    def drawn(part, t):
        return [epochs(part, t, federation) for federation in (here, there)]

    for part, count in ((0.1, 1), (0.3, 1), (0.5, 3), (0.7, 3), (1, 5)):
        members, elsewhere = map(np.asarray, drawn(part, jnp.arange(300)))
        np.testing.assert_array_equal(elsewhere, members[:, order])  # whatever a client's row
        members = members[:, :5]
        slow = members < 4
        np.testing.assert_array_equal(slow.sum(axis=1), count)
        np.testing.assert_allclose(slow.mean(axis=0), count / 5, atol=0.12)
        most = members.max(axis=1, where=slow, initial=0)
        least = members.min(axis=1, where=slow, initial=4)
        assert (most > least).any() == (count > 1)  # each draws its own number
        found, times = np.unique(members[slow], return_counts=True)
        assert found.tolist() == [1, 2, 3]
        np.testing.assert_allclose(times / times.sum(), 1 / 3, atol=0.1)
