"""FLoRA against its reference: stacked adapters, merged in every round."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close
from fedjax_pfl.utils import keys
from tests.algorithms.harness import PATTERNS, Case, assert_losses, initial_model, over
from tests.algorithms.test_fedex_lora import ADAPTERS, ALPHA, RANK, base_of
from tests.references import flora


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@over(PATTERNS, ("partial-map", "full-vmap"))
def test_reference(pattern):
    case = Case(**PATTERNS[pattern], **ADAPTERS)
    drawn = [
        initial_model(case.federation, keys.of_round(case.key, "adapters", t))["params"]["hidden"]
        for t in range(3)
    ]
    more = {"base": base_of(case), "factor": ALPHA / RANK}
    more["drawn"] = jax.tree.map(np.asarray, drawn)
    wanted = flora.run(case.initial(), case.clients(), 3, **case.common(), **more)
    states, records = case.run_rounds(pfl.make_algorithm("flora"))
    for t, (record, known) in enumerate(zip(records, wanted, strict=True)):
        assert_close(states[t + 1].server["params"], known["global"], "global")
        np.testing.assert_allclose(states[t + 1].base["hidden"], known["base"], 0, 1e-9)
        assert np.abs(known["base"] - more["base"]["kernel"]).max() > 1e-3
        for name in ("global", "personalized"):
            assert_losses(record, case, name, [known["whole"]] * case.num_clients)
