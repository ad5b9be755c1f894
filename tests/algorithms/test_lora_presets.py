"""FFA-LoRA and FedSA-LoRA, FedAvg with the flags of their presets, against their references."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from tests.algorithms.harness import PATTERNS, Case, assert_losses, over
from tests.algorithms.test_fedex_lora import ADAPTERS, ALPHA, RANK
from tests.references import fedsa_lora, ffa_lora


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def started(case):
    """The frozen leaves of the case's run."""
    return jax.tree.map(
        np.asarray, jax.jit(case.federation.with_backbone)(case.key).backbone["params"]["hidden"]
    )


@over(PATTERNS, ("partial-map", "full-vmap"))
def test_ffa_lora(pattern):
    case = Case(**PATTERNS[pattern], **ADAPTERS, freeze="body,*lora_a")
    base, model = started(case), case.initial()
    assert set(model["hidden"]) == {"lora_b"}
    first = {**model, "hidden": {**model["hidden"], "lora_a": base["lora_a"]}}
    wanted = ffa_lora.run(first, case.clients(), 3, **case.common(), base=base, factor=ALPHA / RANK)
    states, records = case.run_rounds(pfl.make_algorithm("fedavg"))
    for t, (record, known) in enumerate(zip(records, wanted, strict=True)):
        made = states[t + 1].server["params"]["hidden"]["lora_b"]
        np.testing.assert_allclose(made, known["global"]["hidden"]["lora_b"], 0, 1e-9)
        for name in ("global", "personalized"):
            assert_losses(record, case, name, [known["whole"]] * case.num_clients)
    assert np.abs(made).max() > 1e-3


@over(PATTERNS, ("partial-map", "full-vmap"))
def test_fedsa_lora(pattern):
    case = Case(**PATTERNS[pattern], **ADAPTERS, share="*lora_a")
    first = case.initial()
    wanted = fedsa_lora.run(
        first, case.clients(), 3, **case.common(), base=started(case), factor=ALPHA / RANK
    )
    states, records = case.run_rounds(pfl.make_algorithm("fedavg"))
    for t, (record, known) in enumerate(zip(records, wanted, strict=True)):
        (made,) = jax.tree.leaves(states[t + 1].server)
        np.testing.assert_allclose(made, known["a"], 0, 1e-9)
        assert_losses(record, case, "personalized", known["personalized"])
        assert "global/test/loss" not in record["scores"]
    assert np.abs(made - first["hidden"]["lora_a"]).max() > 1e-3
