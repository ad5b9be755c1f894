"""FedBN against its reference: a network with a convolution and batch normalization."""

import jax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation, toy_for
from tests.algorithms.harness import PATTERNS, assert_losses, assert_steps, over, sampled_federation
from tests.algorithms.norms import NormCase, assert_everyones, first_model
from tests.references import fedbn, norm_network

# Settings of the algorithm, momentum and weight decay.
VARIANTS = {
    "plain": ({}, 0.0, 0.0),
    "momentum-and-decay-by-size": ({"weighting": "size"}, 0.6, 0.05),
}


@pfl.core.struct
class Unchecked(type(pfl.make_algorithm("fedbn"))):
    """On any network."""

    def check(self, federation):
        pass


@over(PATTERNS, [("partial-map", "plain"), ("full-vmap", "momentum-and-decay-by-size")], VARIANTS)
def test_reference(pattern, variant):
    settings, momentum, decay = VARIANTS[variant]
    case = NormCase(momentum=momentum, weight_decay=decay, **PATTERNS[pattern])
    common, weighting = case.common(), settings.get("weighting", "uniform")
    states, records = case.run_rounds(pfl.make_algorithm("fedbn", settings))
    assert set(jax.tree.leaves(states[0].private)[0].shape[:1]) == {case.num_clients}
    wanted = fedbn.run(
        first_model(states),
        case.clients(),
        3,
        **common,
        weighting=weighting,
        train=norm_network.sgd(momentum, decay),
    )
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        assert_everyones(state, models["personalized"], f"round {t}")
        assert_losses(record, case, "personalized", models["personalized"])
        assert_steps(record, case.cohorts[t], common["batches"][t])
        case.assert_whole_models(record, t)
        case.assert_mean(record, t, 1 if weighting == "uniform" else None)


def test_batch_norm_stays_and_does_not_travel():
    algorithm = pfl.make_algorithm("fedbn")
    plan = algorithm.prepare(toy_for(algorithm)).plan
    sizes = dict(zip(plan.blocks, plan.shared_block_sizes(), strict=True))
    assert sizes == {"fc_0": 25, "bn": 0, "head": 18}
    states = states_of(algorithm, toy_for(algorithm), 2)
    for leaf in jax.tree.leaves(states[-1].private):
        assert leaf.shape == (5, 5) and abs(leaf - leaf[:1]).max() > 1e-6  # each client's own


def test_without_normalization_it_would_be_fedavg_and_is_refused():
    """The program itself is FedAvg's, weights apart."""
    text = "this network has none: it would be fedavg"
    with pytest.raises(pfl.InputError, match=f"{text}, with equal weights"):
        pfl.Simulation(pfl.make_algorithm("fedbn"), toy_federation()).check()
    algorithm = pfl.make_algorithm("fedbn", {"weighting": "size"})
    with pytest.raises(pfl.InputError, match=f"{text}\\.$"):
        pfl.Simulation(algorithm, toy_federation()).check()
    federation = sampled_federation()
    unchecked = Unchecked(weighting="size")
    ours, plain = (run_rounds(a, federation, 2) for a in (unchecked, pfl.make_algorithm("fedavg")))
    assert_close(ours[0][-1].server, plain[0][-1].server, "server", 0)


def test_another_policy_is_told():
    algorithm = pfl.make_algorithm("fedbn")
    for policy, told in (
        ("shared", ["batch-norm is shared, as set by batch_norm"]),
        (None, []),
        ("local", []),
    ):
        federation = algorithm.prepare(toy_for(algorithm, batch_norm=policy))
        assert algorithm.remarks(federation) == told
