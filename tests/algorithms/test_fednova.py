"""FedNova against its reference, and its effective steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import run_rounds, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.models.norm_net import NormNet
from tests.references import fednova


def algorithm(**settings):
    return pfl.make_algorithm("fednova", settings)


PULL = {"proximal_weight": 0.7}


def batches_taken(one):
    """Those of the steps that slow clients take."""
    work = [record["clients"]["local_steps"].astype(int) for record in one.records]
    walked = one.setting.batches
    return (
        {
            "batches": [
                [own[:count] for own, count in zip(*both, strict=True)]
                for both in zip(walked, work, strict=True)
            ]
        }
        if "slow_fraction" in one.settings
        else {}
    )


test_reference, test_contract = comparison(
    "fednova",
    fednova.run,
    # Lengths of the local path differ from the numbers of steps in the base too.
    settings=PULL,
    variants={
        "proximal": {},
        "momentum": Variant(options={"momentum": 0.5}, reference=PULL | {"momentum": 0.5}),
        "nesterov": Variant(
            {"proximal_weight": 0.0},
            options={"optimizer_options": {"momentum": 0.6, "nesterov": True}},
            reference={"momentum": 0.6, "nesterov": True},
        ),
        "slow clients": Variant(
            {"slow_fraction": 0.5}, options={"participation": 0.8, "local_epochs": 3}
        ),
    },
    ours=("slow_fraction",),
    given=batches_taken,
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    matrices={"mixing": "weights"},
)


@pytest.mark.parametrize(("mu", "momentum"), [(0.0, 0.9), (0.5, 0.0)])
def test_effective_steps(mu, momentum):
    federation = toy_federation(local_epochs=3, momentum=momentum)
    ctx = pfl.Context(federation, jax.random.key(0), jnp.int32(0), jnp.int32(3), None)
    taken, rate = np.array([0, 1, 2, 6]), 0.3
    found, without = algorithm(proximal_weight=mu).effective_steps(ctx, jnp.asarray(taken))
    plain = [fednova.length_with_momentum(steps, momentum) for steps in taken]
    np.testing.assert_allclose(without, plain, 1e-12)
    wanted = plain if not mu else [fednova.proximal_length(steps, rate * mu) for steps in taken]
    np.testing.assert_allclose(found, wanted, 1e-12)


@pytest.mark.costly
def test_server_update_keeps_running_statistics_within_those_of_clients():
    """They are averaged: the longer step of parameters could make a variance negative."""
    federation = toy_federation(model=NormNet(), batch_norm="shared", validation_size=0)
    states, (record,) = run_rounds(algorithm(), federation, 1, scored=())
    weights = record["matrices"]["mixing"][0]
    assert weights.sum() == pytest.approx(1) and len(set(weights.round(6))) > 2
    assert (states[-1].server["batch_stats"]["bn"]["var"] > 0).all()


def test_check_refuses_momentum_that_is_kept():
    """Effective steps are counted from a momentum of 0."""
    kept = {"keep_optimizer_state": True}
    algorithm().check(toy_federation(**kept))
    with pytest.raises(pfl.InputError, match="leave keep_optimizer_state out"):
        algorithm().check(toy_federation(momentum=0.9, **kept))


def test_remarks():
    assert algorithm().remarks(toy_federation()) == []
