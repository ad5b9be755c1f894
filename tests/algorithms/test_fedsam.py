"""FedSAM and MoFedSAM against their reference, and the perturbation of special layers."""

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.sample_privacy import releases
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.uploads.accounting import training_releases
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import fedsam
from tests.references.network import add, random_parameters, zeros_like

algorithm = maker("fedsam")


def assert_record(now):
    now.assert_mean()
    momentum = now.compared.algorithm.global_momentum
    if momentum:
        assert_close(now.state.direction, now.wanted["direction"], "direction")
    now.assert_copies(now.present, (2 if momentum else 1) * now.present)


def new_clients(one, made):
    """They take a round of SAM steps from the server's model."""
    batches, (*_, rate) = one.newcomers()
    setting = one.setting.but(
        initial=one.wanted[-1]["global"], rounds=1, batches=[batches], learning_rate=[rate]
    )
    return [
        fedsam.run(setting.but(cohorts=[[i]]), rho=0.4)[0]["global"]
        for i in range(one.case.num_clients)
    ]


MOMENTUM = {"global_momentum": True, "beta": 0.3, "adaptive": True, "eta": 0.1}
test_reference, test_contract = comparison(
    "fedsam",
    fedsam.run,
    settings={"rho": 0.4},
    variants={"sam": {}, "adaptive with momentum": MOMENTUM},
    ours=("global_momentum", "adaptive"),
    states={"server": "global"},
    scores={"global": "global", "personalized": "global"},
    steps=("batches", "batches"),
    copies=None,
    check=assert_record,
    new_clients=new_clients,
)


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(3, name="head")(nn.Dropout(0.5, deterministic=not train)(x))


@pytest.mark.costly
def test_dropout_of_both_passes_differs():
    federation = toy_federation(model=Dropping(), validation_size=0)
    ours = states_of(algorithm(rho=0), federation, 1)[-1]
    plain = states_of(pfl.make_algorithm("fedavg"), federation, 1)[-1]
    ours, other = (state.server["params"]["head"]["kernel"] for state in (ours, plain))
    assert np.abs(ours - other).max() > 1e-3


def test_frozen_layers_are_not_perturbed():
    """Their gradient is not part of the norm either."""
    rng = np.random.default_rng(0)
    params, gradient = (random_parameters(rng, 4, 5, 3) for _ in range(2))
    moves = {layer: dict.fromkeys(leaves, layer == "head") for layer, leaves in params.items()}
    found = jax.jit(lambda: algorithm(rho=0.5).perturbed(params, gradient, moves))()
    of_head = {"hidden": zeros_like(gradient)["hidden"], "head": gradient["head"]}
    wanted = add(params, fedsam.perturbation(params, of_head, 0.5))
    assert_close(found, wanted, "perturbed")


def test_privacy_accounts_for_both_gradients_of_a_batch():
    """Two releases on one minibatch count as one with less noise."""
    federation = toy_federation(validation_size=0, dp="sample", dp_clip=0.5, dp_noise=1.0)
    (ours,), (plain,) = (
        training_releases(
            releases(one, federation, round_facts(one_run(one), federation)), 1.0, 3, 8
        )
        for one in (algorithm(), pfl.make_algorithm("fedavg"))
    )
    assert (ours.count, plain.count) == (4, 8)
    np.testing.assert_allclose(ours.noise_multiplier, plain.noise_multiplier / np.sqrt(2))
