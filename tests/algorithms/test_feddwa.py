"""FedDWA against its reference, beside one client whose model is huge, and running statistics."""

from dataclasses import replace

import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from fedjax_pfl.utils import trees
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import assert_steps, stack
from tests.models.norm_net import NormNet
from tests.references import feddwa


def guidance_batches(one):
    """Two epochs as in local training, or three of its own."""
    schedule = one.case.federation.schedule
    epochs = one.settings.get("guidance_epochs") or schedule.epochs
    return {"guidance_batches": one.case.batches("guidance", replace(schedule, epochs=epochs))}


def steps_of_guidance(now):
    """Of full gradients a pass over all samples, in minibatches of 4."""
    walks = {
        "epochs": now.batches("guidance_batches"),
        "full_gradient": [range(-(-size // 4)) for size in now.case.sizes],
    }
    return walks.get(now.settings.get("guidance", "epochs"), [[]] * now.case.num_clients)


def compare_guidance(now):
    guides = now.wanted["guidance"]
    found = trees.take(dict(now.state.guidance), np.array(list(guides)))
    assert_close(found, stack(list(guides.values())), "guidance")
    twice = now.settings.get("guidance", "epochs") in ("epochs", "full_gradient")
    now.assert_copies((1 + twice) * now.present, now.present)
    assert_steps(now.record, now.cohort, now.batches(), steps_of_guidance(now))


test_reference, test_contract = comparison(
    "feddwa",
    feddwa.run,
    settings={"top_k": 2, "score_guidance": True},
    variants={
        "epochs": {},
        "three epochs": {"guidance_epochs": 3},
        **{name: {"weights": name, "top_k": 5} for name in ("simplex", "exact")},
        **{name: {"guidance": name} for name in feddwa.GUIDANCE if name != "epochs"},
    },
    ours=("score_guidance", "guidance_epochs"),
    given=guidance_batches,
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    matrices={"mixing": "weights"},
    steps=(),
    copies=None,
    check=compare_guidance,
)


def test_guidance_schedule():
    def schedules(**settings):
        feddwa = pfl.make_algorithm("feddwa", settings)
        return round_facts(one_run(feddwa), federation).schedules

    federation = toy_federation(local_steps=7)
    given = federation.schedule
    assert schedules() == schedules(guidance_epochs="none") == {given}
    assert schedules(guidance_epochs=4) == {given, replace(given, epochs=4, steps=None)}


@pytest.mark.costly
def test_weights_beside_a_huge_client():
    # The floor of distances is a part of each receiver's own size: were it of the largest's, all
    # other distances would be below it.
    federation = toy_federation()
    data, algorithm = federation.data, pfl.make_algorithm("feddwa")
    own = np.asarray(data.train.index)[int(data.train.offset[3]) :][: int(data.train.size[3])]
    samples = np.array(data.samples)
    samples[own] *= 1e12
    huge = replace(federation, data=replace(data, samples=samples))
    others = [0, 1, 2, 4]

    def weights(federation):
        state, record = run_rounds(algorithm, federation, rounds=1, scored=())
        kernel = state[-1].models["params"]["head"]["kernel"]
        assert not record[0]["clients"]["diverged"].any()
        matrix = record[0]["matrices"]["mixing"][np.ix_(others, others)]
        return kernel, matrix / matrix.sum(1, keepdims=True)

    kernel, mixed = weights(huge)
    assert abs(kernel[3]).max() > 1e9
    wanted = weights(federation)[1]
    np.testing.assert_allclose(mixed, wanted, 1e-6)
    assert wanted.max() > 0.5  # far from even


@pytest.mark.costly
def test_running_statistics_are_not_extrapolated():
    """From a variance of 1 to one below a half, as far again would be negative."""
    federation = toy_federation(model=NormNet(), batch_norm="affine_shared", local_epochs=8)
    data = federation.data
    still = replace(federation, data=replace(data, samples=np.asarray(data.samples) * 1e-3))
    settings = {"guidance": "extrapolate", "score_guidance": True}
    states, records = run_rounds(pfl.make_algorithm("feddwa", settings), still, rounds=1)
    before, after = states
    old, new = (state.models["batch_stats"]["bn"]["var"] for state in (before, after))
    assert (2 * new - old)[[0, 3, 4]].max() < 0 < new.min()
    # Statistics stay with their client, so those of its model are those it trained.
    assert_close(after.guidance["batch_stats"], after.models["batch_stats"], "statistics", 0)
    assert np.isfinite(records[0]["scores"]["guidance/test/loss"][:4]).all()
