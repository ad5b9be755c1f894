"""FedNova against its reference, its effective steps, and running statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import run_rounds, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import maker
from tests.models.norm_net import NormNet
from tests.references import fednova

algorithm = maker("fednova")


def batches_of_slow_clients(one):
    """The steps that slow clients took."""
    if one.variant != "slow":
        return {}
    work = [record["clients"]["local_steps"].astype(int) for record in one.records]
    assert len({tuple(steps) for steps in work}) > 1
    rounds = zip(one.setting.batches, work, strict=True)
    return {"batches": [[own[:n] for own, n in zip(*of_round, strict=True)] for of_round in rounds]}


def check_weights(now):
    weights = now.wanted["weights"][None]
    np.testing.assert_allclose(now.record["matrices"]["mixing"], weights, 1e-9)


NESTEROV = {"momentum": 0.6, "nesterov": True}
PULL = {"proximal_weight": 0.7}
test_reference, test_contract = comparison(
    "fednova",
    fednova.run,
    variants={
        "proximal": PULL,
        "plain": {},
        "momentum": Variant(PULL, PULL | {"momentum": 0.5}, {"momentum": 0.5}),
        "nesterov": Variant({}, NESTEROV, {"optimizer_options": NESTEROV}),
        "slow": Variant({"slow_fraction": 0.5}, {}, {"participation": 0.8, "local_epochs": 3}),
    },
    given=batches_of_slow_clients,
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    check=check_weights,
)


@pytest.mark.parametrize(("mu", "momentum"), [(0.0, 0.9), (0.5, 0.0)])
def test_effective_steps_are_those_of_the_papers_formulas(mu, momentum):
    federation = toy_federation(local_epochs=3, momentum=momentum)
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(3), None)
    taken, rate = np.array([0, 1, 2, 6]), 0.3
    found, without = algorithm(proximal_weight=mu).effective_steps(ctx, jnp.asarray(taken))
    plain = [fednova.length_with_momentum(steps, momentum) for steps in taken]
    np.testing.assert_allclose(without, plain, 1e-12)
    wanted = plain if not mu else [fednova.proximal_length(steps, rate * mu) for steps in taken]
    np.testing.assert_allclose(found, wanted, 1e-12)


@pytest.mark.costly
def test_running_statistics_stay_within_the_clients():
    """They are averaged: the longer step of parameters could make a variance negative."""
    federation = toy_federation(model=NormNet(), batch_norm="shared", validation_size=0)
    states, (record,) = run_rounds(algorithm(), federation, 1, scored=())
    weights = record["matrices"]["mixing"][0]
    assert weights.sum() == pytest.approx(1) and len(set(weights.round(6))) > 2
    assert (states[-1].server["batch_stats"]["bn"]["var"] > 0).all()
