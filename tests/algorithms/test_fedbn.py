"""FedBN against its reference: a network with a convolution and batch normalization."""

import jax

from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.norms import NormCase, assert_everyones, first_model, norm_loss
from tests.references import fedbn, norm_network

SGD = {"momentum": 0.6, "weight_decay": 0.05}


def training(one):
    options = SGD if one.variant == "by-size" else {"momentum": 0.0, "weight_decay": 0.0}
    private = jax.tree.leaves(one.states[0].private)
    assert {len(leaf) for leaf in private} == {one.case.num_clients}
    return {
        "initial": first_model(one.states),
        "train": norm_network.sgd(options["momentum"], options["weight_decay"]),
    }


def check_models(now):
    assert_everyones(now.state, now.wanted["personalized"], f"round {now.t}")
    now.assert_mean()


test_reference, test_contract = comparison(
    "fedbn",
    fedbn.run,
    variants={"plain": {}, "by-size": Variant({"weighting": "size"}, options=SGD)},
    given=training,
    scores={"personalized": "personalized"},
    check=check_models,
    make_case=NormCase,
    loss=norm_loss,
)
