"""An extra loss of the federation reaches every algorithm's local steps, and says where it
can't."""

from dataclasses import replace

import jax
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import InputError
from fedjax_pfl.algorithms.local import Local
from fedjax_pfl.testing.toys import assert_close, count_compilations, states_of, toy_federation
from fedjax_pfl.training import WeightDistribution
from fedjax_pfl.utils.structs import struct
from tests.algorithms.harness import Case

WDR = WeightDistribution(10.0)

pytestmark = pytest.mark.usefixtures("double_precision")


def sampled(extra_loss=WDR):
    return Case(participation=0.6, extra_loss=extra_loss)


def test_extra_loss_beside_wdr_weight_is_refused():
    for federation, settings in (
        (toy_federation(extra_loss=WDR), None),
        (toy_federation(extra_loss=WDR), {"wdr_weight": (0, 1)}),
    ):
        algorithm = pfl.make_algorithm("cwfedavg", {"wdr_weight": 0 if settings else 10})
        with pytest.raises(InputError, match="set one of the two to 0"):
            pfl.simulate(algorithm, federation, 1, settings=settings)


@pytest.mark.costly
def test_full_gradients_contain_the_extra_loss():
    # One step of full batches from the trained model is the full gradient's step.
    options = {"batch_size": 16, "local_epochs": 1, "extra_loss": WDR}
    settings = {"guidance": "full_gradient", "score_guidance": True}
    full = states_of(pfl.make_algorithm("feddwa", settings), toy_federation(**options), 1)[-1]
    settings = {"guidance": "epochs", "score_guidance": True}
    epoch = states_of(pfl.make_algorithm("feddwa", settings), toy_federation(**options), 1)[-1]
    assert_close(full.guidance, epoch.guidance, "guidance")


@pytest.mark.costly
def test_weight_of_weight_distribution_is_traced():
    algorithm, other = pfl.make_algorithm("fedavg"), sampled(WeightDistribution(3))
    ours = sampled().run_rounds(algorithm)[0]
    with count_compilations() as compiled:
        theirs = other.run_rounds(algorithm)[0]
    assert not compiled
    kernels = [states[-1].server["params"]["head"]["kernel"] for states in (ours, theirs)]
    assert abs(kernels[0] - kernels[1]).max() > 1e-6


@struct
class ByHand(Local):
    """Local training whose steps are written by hand."""

    def round(self, ctx, state):
        def step(model, batch, rng, broadcast, client):
            slope = jax.grad(lambda m: ctx.federation.task.loss(m, batch)[0])(model)
            return optax.tree.add_scale(model, -ctx.learning_rate, slope)

        models, finite, steps = ctx.run_clients(step, ctx.cohort.gather(state.models))
        cohort = ctx.cohort.mark_diverged(finite, steps)
        return replace(state, models=cohort.scatter(state.models, models)), ctx.record(cohort)


def test_an_algorithm_that_would_ignore_it_is_refused():
    with pytest.raises(InputError, match="has its own local steps"):
        pfl.Simulation(ByHand(), toy_federation(extra_loss=WDR)).check()
    pfl.Simulation(ByHand(), toy_federation()).check()
    pfl.Simulation(
        pfl.make_algorithm("apfl"), toy_federation(extra_loss=WDR)
    ).check()  # composed of ctx.sgd_step


@struct
class Negative(pfl.training.ExtraLoss):
    def validate(self):
        raise InputError("never right")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (WeightDistribution(-1.0), "wdr_weight must be a finite number of at least 0"),
        (WeightDistribution(float("inf")), "wdr_weight must be a finite number"),
        (lambda *_: 0.0, "extra_loss must be an ExtraLoss such as WeightDistribution"),
        (Negative(), "never right"),
    ],
)
def test_extra_losses_are_checked(given, message):
    with pytest.raises(InputError, match=message):
        toy_federation(extra_loss=given)


def test_a_model_without_a_classifier_is_refused():
    with pytest.raises(InputError, match=r"has no weight \[features, 3\]"):
        toy_federation(extra_loss=WDR, head="fc_0")


def test_the_penalty_of_no_extra_loss_is_nothing():
    federation = toy_federation()
    assert federation.penalty(None, None, None) == 0
    assert federation.replace_training(extra_loss=WDR).training.extra_loss.weight == 10
    assert np.asarray(toy_federation(extra_loss=WDR).training.extra_loss.weight).dtype == np.float64


PARAMS = {"a": {"w": np.array([1.0, -2.0, 4.0])}, "b": {"w": np.array([[0.5, 3.0]])}}
CENTRE = {"a": {"w": np.array([0.5, 0.0, 1.0])}, "b": {"w": np.array([[0.25, -1.0]])}}


def pulled(broadcast, operand, params=PARAMS):
    """(value, gradient) of the proximal term of one client."""
    client = pfl.training.Client(*[None] * 6, operand)
    return jax.value_and_grad(pfl.training.proximal(0.3))(params, None, broadcast, client)


@pytest.mark.parametrize("by", ["broadcast", "operand", "both"])
def test_the_proximal_term_pulls_to_a_broadcast_or_to_a_clients_own(by):
    other = jax.tree.map(np.zeros_like, CENTRE)
    given = {"broadcast": (CENTRE, None), "operand": (None, CENTRE), "both": (CENTRE, other)}
    value, gradient = pulled(*given[by])
    squares = 0.5**2 + 2**2 + 3**2 + 0.25**2 + 4**2
    np.testing.assert_allclose(value, 0.3 / 2 * squares, 1e-15)
    wanted = jax.tree.map(lambda w, c: 0.3 * (w - c), PARAMS, CENTRE)
    assert_close(gradient, wanted, "mu (w - w_ref)", 1e-15)


def test_the_proximal_term_leaves_private_leaves_free():
    value, gradient = pulled({"a": CENTRE["a"], "b": {"w": None}}, None)
    np.testing.assert_allclose(value, 0.3 / 2 * (0.5**2 + 2**2 + 3**2), 1e-15)
    assert not gradient["b"]["w"].any() and gradient["a"]["w"].all()


@pytest.mark.parametrize(
    "reference",
    [
        None,
        {"params": CENTRE},  # a whole model
        jax.tree.map(lambda leaf: leaf[None].repeat(3, 0), CENTRE),  # all clients' in every step
    ],
)
def test_what_the_proximal_term_pulls_to_is_like_the_parameters(reference):
    with pytest.raises(TypeError, match=r"proximal needs reference parameters"):
        pulled(reference, None)
