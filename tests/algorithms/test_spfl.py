"""SPFL and SPFL-w against their references."""

import numpy as np

from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import FourLayers, assert_losses
from tests.references import spfl

GAMMA = 2
TWO = ("hidden",)
FOUR = ("hidden_a", "hidden_b", "hidden_c")


def run(s, *, form, **options):
    return form(s, gamma=GAMMA, **options)


def form_and_batches(one):
    algorithm = one.algorithm
    forms = {"paper": spfl.run_paper, "published": spfl.run}
    found = {
        "form": spfl.run_weights if hasattr(algorithm, "memory") else forms[algorithm.weighting],
        "body": FOUR if "hidden_a" in one.setting.initial else TWO,
        "routine_batches": one.case.batches("routine"),
        "one_step": algorithm.local_updates == 1,
    }
    if algorithm.data_shares:
        found["data_shares"] = one.setting.sizes
    if algorithm.layer_weights != "auto":
        found["weights"] = [float(part) for part in algorithm.layer_weights.split(",")]
    return found


def check(now):
    count, options = now.case.num_clients, now.compared.options
    similarity = np.moveaxis(now.wanted["similarity"].reshape(-1, count, count), 0, -1)
    np.testing.assert_allclose(now.state.cosines, similarity, 1e-9, 1e-9)
    expected = applied(now.wanted, options["form"], len(options["body"]))
    np.testing.assert_allclose(now.record["matrices"]["mixing"], expected, 1e-9, 1e-9)
    due = now.t % GAMMA == 0
    copies = now.present + due * np.ones(count, int)  # the round's, and everybody's in the routine
    blocks = len(options["body"]) + 1
    np.testing.assert_array_equal(now.record["up"], np.repeat(copies[:, None], blocks, 1))
    np.testing.assert_array_equal(now.record["down"], now.record["up"])
    steps = now.present * [len(own) for own in now.batches()]
    steps += due * np.array([len(own) for own in now.batches("routine_batches")])
    steps *= now.compared.algorithm.local_updates
    np.testing.assert_array_equal(now.clients["local_steps"], steps)


def finish(one):
    last = [one.setting.initial] * one.case.num_clients
    for now in one.rounds():
        last = [now.wanted["trained"].get(i, model) for i, model in enumerate(last)]
        assert_losses(now.record, one.case, "last_trained", last)
    if one.variant == "published" and one.pattern != "single":
        heads = [model["head"]["kernel"] for model in one.wanted[-1]["personalized"]]
        assert max(np.abs(a - b).max() for a in heads for b in heads) > 1e-3


def applied(models, run, blocks):
    """The matrices of all blocks, the head's last."""
    weights = models["weights"]
    if run is spfl.run_weights:
        return weights
    if run is spfl.run_paper:
        each = {1: [0] * (blocks + 1), 2: [0] * blocks + [1]}
        return weights[each.get(len(weights), list(range(blocks + 1)))]
    return np.stack([weights] * blocks + [np.eye(len(weights))])


test_reference, test_contract = comparison(
    "spfl",
    run,
    settings={"gamma": GAMMA},
    variants={
        "published": {},
        "paper": {"weighting": "paper"},
        "equation 4": {
            "weighting": "paper",
            "raw_cosines": True,
            "data_shares": True,
            "server_rate": 0.7,
        },
        "blocks": Variant(
            {"weighting": "paper", "stage": "blocks"}, options={"model": FourLayers()}
        ),
        "model": {"weighting": "paper", "stage": "model"},
        "one-step-given-parts": Variant(
            {"local_updates": 1, "layer_weights": "0.1,0.7,0.9"}, options={"model": FourLayers()}
        ),
        "weights": Variant(algorithm="spfl_w"),
        "memory": Variant({"memory": 0.6}, {"ema": 0.6}, algorithm="spfl_w"),
        "weights-given-parts": Variant(
            {"local_updates": 1, "layer_weights": "0.3,0.7"}, algorithm="spfl_w"
        ),
    },
    ours=("gamma", "weighting", "local_updates", "layer_weights", "data_shares"),
    given=form_and_batches,
    states={"models": "personalized"},
    scores={"personalized": "personalized"},
    steps=(),
    copies=None,
    check=check,
    finish=finish,
)
