"""FFA-LoRA and FedSA-LoRA, FedAvg with the flags of their presets, against their references."""

import numpy as np

from tests.algorithms.comparison import comparison
from tests.algorithms.lora import ADAPTERS, ALPHA, RANK, base_of
from tests.references import fedsa_lora, ffa_lora


def frozen_layer(one):
    return {"base": base_of(one.case), "factor": ALPHA / RANK}


def frozen_factor(one):
    """The reference's model has the factor A that the library's does not train."""
    given, model = frozen_layer(one), one.setting.initial
    assert set(model["hidden"]) == {"lora_b"}
    hidden = {**model["hidden"], "lora_a": given["base"]["lora_a"]}
    return {**given, "initial": {**model, "hidden": hidden}}


def assert_b_moved(one):
    assert np.abs(one.wanted[-1]["global"]["hidden"]["lora_b"]).max() > 1e-3


test_ffa_lora, _ = comparison(
    "fedavg",
    ffa_lora.run,
    options={**ADAPTERS, "freeze": "body,*lora_a"},
    given=frozen_factor,
    states={"server.params.hidden.lora_b": "global.hidden.lora_b"},
    scores={"global": "whole", "personalized": "whole"},
    finish=assert_b_moved,
)


def assert_no_global_score(now):
    assert "global/test/loss" not in now.record["scores"]


def assert_a_moved(one):
    assert np.abs(one.wanted[-1]["a"] - one.setting.initial["hidden"]["lora_a"]).max() > 1e-3


test_fedsa_lora, _ = comparison(
    "fedavg",
    fedsa_lora.run,
    options={**ADAPTERS, "share": "*lora_a"},
    given=frozen_layer,
    states={"server.params.hidden.lora_a": "a"},
    scores={"personalized": "personalized"},
    check=assert_no_global_score,
    finish=assert_a_moved,
)
