"""pFedLA and HeurpFedLA against their reference, which starts from the library's own networks."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing.toys import run_rounds, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import FourLayers, TwoLayers, unstack
from tests.references import pfedla

SMALL = {"embedding_size": 4, "hidden_size": 6}
# Blocks of the reference; "hidden" and "head" unless stated.
BLOCKS = {
    "whole-model": (("hidden", "head"),),
    "four layers": ("hidden_a", "hidden_b", "hidden_c", "head"),
}


def blocks_of(one):
    return BLOCKS.get(one.variant, ("hidden", "head"))


def networks(state):
    """(embeddings, hypernetworks) of a state, in the reference's form."""
    count, blocks = len(state.embedding), state.kernel.shape[2]
    return list(state.embedding), [
        {
            "trunk": [{"kernel": w[i], "bias": b[i]} for w, b in state.trunk],
            "output": [
                {"kernel": state.kernel[i, :, b].T, "bias": state.bias[i, :, b]}
                for b in range(blocks)
            ],
        }
        for i in range(count)
    ]


def assert_same_networks(state, models):
    embeddings, hypernetworks = networks(state)
    np.testing.assert_allclose(embeddings, models["embedding"], 1e-9, 1e-9)
    for ours, theirs in zip(hypernetworks, models["hypernetwork"], strict=True):
        for part in ("trunk", "output"):
            for layer, expected in zip(ours[part], theirs[part], strict=True):
                for name in ("kernel", "bias"):
                    np.testing.assert_allclose(layer[name], expected[name], 1e-9, 1e-9)


def inputs(one):
    embeddings, hypernetworks = networks(one.states[0])
    found = {
        "blocks": blocks_of(one),
        "embeddings": embeddings,
        "hypernetworks": hypernetworks,
        "retained": getattr(one.algorithm, "retained", 0),
    }
    if one.settings.get("initial") == "independent":
        found["initial"] = unstack(one.states[0].uploads["params"])
        first, second, *_ = found["initial"]
        assert abs(first["head"]["kernel"] - second["head"]["kernel"]).max() > 0.1
    return found


def at_start(embeddings, hypernetworks, retained, weighting):
    """The weights [N, L, N] that the first round applies, and what it retains [N, L]."""
    masks, alphas = [], []
    for i, (vector, psi) in enumerate(zip(embeddings, hypernetworks, strict=True)):
        alpha = pfedla.hypernetwork(vector, psi, weighting)
        masks.append(pfedla.retained_blocks(alpha, i, retained))
        alphas.append(pfedla.with_retained(alpha, i, masks[-1]))
    return {"alpha": np.array(alphas), "retained": np.array(masks)}


def assert_round(now, before, blocks):
    """The matrices with which a round began, and what travelled in it."""
    present = now.present
    alpha = np.where(present[:, None, None], before["alpha"], np.eye(len(present))[:, None])
    recorded = now.record["matrices"]["alpha"]
    np.testing.assert_allclose(recorded, np.moveaxis(alpha, 1, 0), 1e-9, 1e-9)
    kept = np.repeat(before["retained"], [len(pfedla.layers_of(b)) for b in blocks], axis=1)
    now.assert_copies(present, present[:, None] & ~kept)


def check_rounds(one):
    weighting = one.settings.get("weighting", "softmax")
    before = at_start(*networks(one.states[0]), one.options["retained"], weighting)
    start = before["alpha"]
    for now in one.rounds():
        assert_same_networks(now.state, now.wanted)
        assert_round(now, before, blocks_of(one))
        before = now.wanted
    assert abs(before["alpha"] - start).max() > 1e-4 or one.pattern == "single"


test_reference, test_contract = comparison(
    "pfedla",
    pfedla.run,
    settings={**SMALL, "hypernetwork_rate": 0.7},
    variants={
        "softmax": {},
        "heuristic": Variant({"retained": 1}, algorithm="heurpfedla"),
        "heuristic, all": Variant({"retained": 1, "updates": "all"}, algorithm="heurpfedla"),
        "relu-independent": {"weighting": "relu_norm", "initial": "independent"},
        "whole-model": {"grouping": "model"},
        "four layers": Variant(options={"model": FourLayers()}, algorithm="heurpfedla"),
    },
    options={"scored": True},  # what is downloaded is not in the state
    ours=(*SMALL, "grouping", "initial"),
    given=inputs,
    states={"uploads": "uploaded"},
    scores={"personalized": "personalized", "last_trained": "uploaded"},
    copies=None,
    finish=check_rounds,
)


@pytest.mark.costly
@pytest.mark.parametrize("weighting", pfedla.WEIGHTINGS)
def test_first_hypernetworks(weighting):
    """Sizes and ranges: N(0, 1), U(+-1/sqrt(fan_in)), and output layers at 0 or in U(0, 1)."""
    federation = toy_federation(model=TwoLayers())
    program = Program(
        make_runs(pfl.make_algorithm("pfedla", {"weighting": weighting}), federation, [0]),
        federation,
        1,
    )
    state = jax.tree.map(lambda leaf: np.asarray(leaf)[0], program.start())
    embeddings, hypernetworks = networks(state)
    assert np.shape(embeddings) == (5, 100)
    assert abs(np.mean(embeddings)) < 0.15 and 0.85 < np.std(embeddings) < 1.15
    for psi in hypernetworks:
        assert len(psi["trunk"]) == 3 and len(psi["output"]) == 2
        for layer in psi["trunk"]:
            for name in ("kernel", "bias"):
                assert 0.085 < np.abs(layer[name]).max() <= 0.1
            assert layer["kernel"].shape == (100, 100)
        for layer in psi["output"]:
            assert not layer["bias"].any()
            high = 1.0 if weighting == "relu_norm" else 0.0
            assert layer["kernel"].shape == (100, 5) and layer["kernel"].min() >= 0.0
            assert 0.9 * high <= layer["kernel"].max() <= high
    assert abs(embeddings[0] - embeddings[1]).max() > 0.5


@pytest.mark.costly
def test_heurpfedla_with_a_private_block():
    federation = toy_federation(share="body")
    _, records = run_rounds(pfl.make_algorithm("heurpfedla", SMALL), federation, scored=())
    head = federation.plan.blocks.index("head")
    for record in records:
        assert (record["down"][:, head] == 1).all()  # of size 0: nothing of it travels
        assert (record["down"][:, 1 - head] == 0).all()
