"""FedSAM against its reference, and its limits."""

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import trees
from fedjax_pfl.core.sample_privacy import releases
from fedjax_pfl.testing.toys import assert_close, run_rounds, states_of, toy_federation
from fedjax_pfl.uploads.accounting import training_releases
from tests.algorithms.harness import PATTERNS, Case, assert_models, assert_steps, over
from tests.engine.finals import final_in
from tests.models.test_normalization import NormNet
from tests.references import fedsam

VARIANTS = {
    "sam": ({"rho": 0.4}, {"rho": 0.4}),
    "mofedsam": (
        {"rho": 0.4, "global_momentum": True, "beta": 0.3, "adaptive": True, "eta": 0.1},
        {"rho": 0.4, "beta": 0.3, "eta": 0.1},
    ),
    "asam": ({"rho": 0.7, "adaptive": True}, {"rho": 0.7, "eta": 0.2}),
}
QUICK = [("partial-map", "sam"), ("full-vmap", "mofedsam")]


def algorithm(**settings):
    return pfl.make_algorithm("fedsam", settings)


@over(PATTERNS, QUICK, VARIANTS, again=["asam"])
def test_reference(pattern, variant):
    settings, known = VARIANTS[variant]
    case = Case(**PATTERNS[pattern])
    common = case.common()
    wanted = fedsam.run(case.initial(), case.clients(), 3, **common, **known)
    states, records = case.run_rounds(algorithm(**settings))
    for t, (record, models) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], models["global"], "global")
        if "global_momentum" in settings:
            assert_close(states[t + 1].direction, models["direction"], "direction")
        case.assert_one_model(record, models["global"])
        assert_steps(record, case.cohorts[t], common["batches"][t], common["batches"][t])
        present = case.present(t)
        np.testing.assert_array_equal(record["up"], np.repeat(present[:, None], 2, axis=1))
        down = 2 if "global_momentum" in settings else 1
        np.testing.assert_array_equal(record["down"], down * record["up"])
        case.assert_mean(record, t)
    if pattern == "partial-map":
        assert_new_clients(case, states[-1], algorithm(**settings), known)


def assert_new_clients(case, state, ours, known):
    """They take one round of SAM steps from the server's model."""
    server = jax.tree.map(np.asarray, state.server["params"])
    new = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    given = {"x": case.x, "y": case.y, "sizes": case.sizes, "learning_rate": case.rates[-1:]}
    given["batches"] = [case.batches("personalize")[-1]]
    wanted = [
        fedsam.run(server, case.clients(), 1, **given, **known, cohorts=[[i]])[0]["global"]
        for i in range(case.num_clients)
    ]
    assert_models(jax.tree.map(lambda leaf: leaf[0], new), wanted, "new clients")


@pytest.mark.thorough
def test_without_a_perturbation_it_is_fedavg():
    federation = toy_federation(model=NormNet(), validation_size=0, participation=0.6)
    ours = states_of(algorithm(rho=0), federation, 2)[-1]
    plain = states_of(pfl.make_algorithm("fedavg"), federation, 2)[-1]
    assert_close(ours.server, plain.server, "parameters and statistics")


@pytest.mark.thorough
def test_running_statistics_are_those_of_the_model_itself():
    """Not of the perturbed one."""
    federation = toy_federation(model=NormNet(), validation_size=0, local_steps=1)
    ours = states_of(algorithm(rho=5.0), federation, 1)[-1]
    plain = states_of(pfl.make_algorithm("fedavg"), federation, 1)[-1]
    assert_close(ours.server["batch_stats"], plain.server["batch_stats"], "statistics")


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(3, name="head")(nn.Dropout(0.5, deterministic=not train)(x))


@pytest.mark.thorough
def test_both_passes_have_a_dropout_of_their_own():
    federation = toy_federation(model=Dropping(), validation_size=0)
    ours = states_of(algorithm(rho=0), federation, 1)[-1]
    plain = states_of(pfl.make_algorithm("fedavg"), federation, 1)[-1]
    ours, other = (state.server["params"]["head"]["kernel"] for state in (ours, plain))
    assert np.abs(ours - other).max() > 1e-3


@pytest.mark.thorough
def test_frozen_layers_are_not_perturbed():
    """Their gradient is not part of the norm either."""
    options = {"batch_size": 4, "local_steps": 1, "validation_size": 0}
    federation = toy_federation((4,), (2,), **options).with_frozen(lambda path: "head" not in path)
    before, after = states_of(algorithm(rho=0.5), federation, 1)
    task = federation.task
    batch = pfl.training.Batch(
        federation.data.samples[federation.data.train.index[:4]].astype(float),
        federation.data.labels[federation.data.train.index[:4]],
        np.ones(4, bool),
    )

    def gradient_of(params):
        return jax.grad(lambda p: task.loss({"params": p}, batch)[0])(params)

    params = trees.join(before.server, trees.row(before.private, 0))["params"]
    head = gradient_of(params)["head"]
    length = np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(head)))
    trial = jax.tree.map(lambda w, g: w + 0.5 * g / length, params["head"], head)
    step = gradient_of({**params, "head": trial})["head"]
    wanted = jax.tree.map(lambda w, g: w - 0.3 * g, params["head"], step)
    assert_close(after.server["params"]["head"], wanted, "head")


@pytest.mark.thorough
def test_rounds_in_which_nobody_arrives_leave_the_direction():
    late = dict.fromkeys(range(5), 1)  # on time in every third round alone
    states, _ = run_rounds(algorithm(global_momentum=True), toy_federation(stragglers=late), 5)
    assert_close(states[5].direction, states[3].direction, "direction", 0)
    assert any(leaf.any() for leaf in jax.tree.leaves(states[3].direction))


def test_both_gradients_of_a_batch_are_accounted():
    """Two releases on one minibatch count as one with less noise."""
    federation = toy_federation(validation_size=0, dp="sample", dp_clip=0.5, dp_noise=1.0)
    (ours,), (plain,) = (
        training_releases(releases(one, federation), 1.0, 3, 8)
        for one in (algorithm(), pfl.make_algorithm("fedavg"))
    )
    assert (ours.count, plain.count) == (4, 8)
    np.testing.assert_allclose(ours.noise_multiplier, plain.noise_multiplier / np.sqrt(2))
