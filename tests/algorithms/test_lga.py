"""LGA and PLGA against their reference, with late clients."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from fedjax_pfl.uploads.stage import UploadStage
from tests.algorithms.comparison import Variant, assert_same, comparison
from tests.algorithms.harness import LATE_PATTERNS, FourLayers, assert_losses, assert_steps
from tests.references import lga


def flush(one):
    """PLGA ends with a flush unless its settings say otherwise."""
    return {"flush": one.algorithm.name == "plga" and one.algorithm.flush}


def assert_record(now):
    case, models, starts = now.case, now.wanted, now.batches("starts")
    personal = now.compared.algorithm.name == "plga"
    if personal:
        assert_same(now.state.personal, models["personal"], "personal")
        assert_losses(now.record, case, "last_trained", models["trained"])
    scored = models["personal" if personal else "trained"]
    assert_losses(now.record, case, "personalized", scored)
    for sent, who in (("up", models["arrived"]), ("down", starts)):
        expected = np.isin(np.arange(case.num_clients), who)[:, None]
        blocks = now.record[sent].shape[1]
        np.testing.assert_array_equal(now.record[sent], np.repeat(expected, blocks, axis=1))
    assert_steps(now.record, starts, now.batches())


def assert_late(one):
    """Late uploads are predicted, and a client that waits in the last round is flushed."""
    late = bool(one.case.federation.participation.delay.any())
    assert any(models["predicted"] for models in one.wanted) == late
    if one.pattern == next(iter(LATE_PATTERNS)):
        waiting = set(one.wanted[-1]["arrived"]) > set(one.case.arrivals[-1])
        assert waiting == one.options["flush"]


# Client 3 waits in the sixth round.
# Of four layers, body and head are neither blocks nor tensors.
test_reference, test_contract = comparison(
    "plga",
    lga.run,
    patterns=LATE_PATTERNS,
    options={"rounds": 6},
    variants={
        "default": {},
        "begun, raw, blocks": Variant(
            {"base": "begun", "raw_cosine": True, "stage": "blocks"},
            {"equation": 10, "raw_cosine": True, "stage": "block"},
        ),
        "stages": Variant({"stage": "stages"}, {"stage": "stage"}, {"model": FourLayers()}),
        "model, no flush": Variant(
            {"stage": "model", "flush": False}, {"stage": "model"}, {"model": FourLayers()}
        ),
        "personal": {"start": "personal"},
        "lga": Variant(algorithm="lga"),
        "uniform": Variant({"weighting": "uniform"}, algorithm="lga"),
    },
    given=flush,
    states={"server": "global", "trained": "trained", "begun": "start", "second": "after"},
    scores={"global": "global"},
    steps=(),
    copies=None,
    check=assert_record,
    finish=assert_late,
)


@pfl.core.struct
class Halved(UploadStage):
    """Sends half of what a model differs from the one that the server knows."""

    def __call__(self, sent, reference, sending, memory):
        return jax.tree.map(lambda own, known: (own + known) / 2, sent, reference), memory


@pytest.mark.costly
def test_uploads_are_relative_to_the_dispatched_models():
    algorithm = pfl.make_algorithm("plga", {"start": "personal", "weighting": "uniform"})
    federation = replace(toy_federation(), uploads=Halved())
    last = states_of(algorithm, federation, rounds=2)[-1]
    halves = jax.tree.map(lambda own, w0: (own + w0).mean(0) / 2, last.trained, last.begun)
    assert_close(last.server, halves, "server")
