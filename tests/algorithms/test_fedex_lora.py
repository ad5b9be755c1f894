"""FedEx-LoRA against its reference: a base that the server changes."""

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import TanhNetwork, assert_close, run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import FourLayers, sampled_federation
from tests.algorithms.lora import ADAPTERS, ALPHA, RANK, base_of
from tests.references import fedex_lora


def check_base_and_costs(now):
    first = now.compared.options["base"]["kernel"]
    assert np.abs(now.wanted["base"] - first).max() > 1e-4
    fewer = min(4 * 5, len(now.cohort) * RANK * (4 + 5))
    np.testing.assert_array_equal(now.clients["numbers_down"], fewer * now.present)


test_reference, test_contract = comparison(
    "fedex_lora",
    fedex_lora.run,
    options=ADAPTERS,
    variants={"uniform": {}, "size": {"weighting": "size"}},
    given=lambda one: {"base": base_of(one.case), "factor": ALPHA / RANK},
    states={"server": "global", "base.hidden": "base"},
    scores={"global": "whole", "personalized": "whole"},
    check=check_base_and_costs,
)


@pytest.mark.costly
def test_predictions_saved_models_and_new_clients_have_the_base():
    trained, new = pfl.split_new_clients(
        toy_federation(model=TanhNetwork(), validation_size=0, **ADAPTERS), 1
    )
    result = pfl.simulate(pfl.make_algorithm("fedex_lora"), trained, 2, seeds=(0, 3))
    kernel = result.final.states.base["hidden"]
    saved = result.final.backbone()["params"]["hidden"]
    np.testing.assert_array_equal(saved["kernel"], kernel)
    model = jax.tree.map(lambda x: x[1], result.final.models()["global"].model)["params"]
    own = model["hidden"]
    full = kernel[1] + ALPHA / RANK * own["lora_a"] @ own["lora_b"]
    x = np.random.default_rng(0).normal(size=(3, 4))
    hidden = np.tanh(x @ np.asarray(full) + saved["bias"][1])
    wanted = hidden @ model["head"]["kernel"] + model["head"]["bias"]
    made = result.predict(trained.data.ids[0].item(), x, outputs=True, seed=3)
    np.testing.assert_allclose(made, wanted, 1e-6)
    # A new client that takes no step scores as that network does.
    scores = pfl.score_new_clients(result.final, new, steps=(0,))
    part = new.data.test
    at = np.asarray(part.index)[: int(part.size[0])]
    rows, labels = np.asarray(new.data.samples)[at], np.asarray(new.data.labels)[at]
    right = (np.tanh(rows @ np.asarray(full) + saved["bias"][1]) @ model["head"]["kernel"]
             + model["head"]["bias"]).argmax(1) == labels  # fmt: skip
    np.testing.assert_allclose(scores[1, 0, 0, 0], right.mean())


@pytest.mark.costly
def test_with_a_fixed_factor_and_without_adapters_it_is_fedavg():
    ours = pfl.make_algorithm("fedex_lora", {"weighting": "size"})
    fedavg = pfl.make_algorithm("fedavg")
    plain, fixed = sampled_federation(), sampled_federation(freeze="body,*lora_a", lora_rank=2)
    for one in (plain, fixed):
        states, _ = run_rounds(ours, one)
        wanted, _ = run_rounds(fedavg, one)
        assert states[-1].base == {}
        for state, other in zip(states, wanted, strict=True):
            assert_close(state.server, other.server, "server")


@pytest.mark.costly
@pytest.mark.parametrize("name", ["fedex_lora", "flora"])
def test_layers_with_a_fixed_factor_are_left_out(name):
    """Layers of 4 x 5 and 3 x 4 numbers, or of 18 and 14 in the only member's factors."""
    options = {"participation": 0.2, "lora_rank": 2, "freeze": "body,hidden_b/lora_a"}
    one = sampled_federation(model=FourLayers(), **options)
    (_, after), (record,) = run_rounds(pfl.make_algorithm(name), one, 1, scored=())
    assert sorted(after.base) == ["hidden_a", "hidden_c"]
    there = record["clients"]["participated"]
    np.testing.assert_array_equal(record["clients"]["numbers_down"], (18 + 12) * there)


@pytest.mark.costly
def test_who_diverges_does_not_reach_the_base():
    """FLoRA's base is tested with HetLoRA."""
    federation = toy_federation(diverging=3, dtype="float32", validation_size=0, **ADAPTERS)
    algorithm = pfl.make_algorithm("fedex_lora")
    (before, after), (record,) = run_rounds(algorithm, federation, 1, scored=())
    assert record["clients"]["diverged"].tolist() == [False, False, False, True, False]
    for old, new in zip(before.base.values(), after.base.values(), strict=True):
        assert np.isfinite(new).all() and (new != old).any()


@pytest.mark.costly
def test_host_memory():
    ours = pfl.make_algorithm("fedex_lora")
    runs = [
        pfl.simulate(ours, sampled_federation(client_state=where, **ADAPTERS), 2)
        for where in ("device", "host")
    ]
    assert_close(*(run.final.backbone() for run in runs), "base")
    assert_close(*(run.final.models()["global"].model for run in runs), "models")


def test_a_base_that_is_no_frozen_leaf_is_refused():
    one = toy_federation(model=TanhNetwork(), validation_size=0, **ADAPTERS)

    class Wrong(type(pfl.make_algorithm("fedex_lora"))):
        def updated_base(self, ctx, state):
            return {"params": {"hidden": {"kernel": state.server["params"]["head"]["kernel"]}}}

    wrong = pfl.core.algorithm("wrong_base")(Wrong)
    try:
        with pytest.raises(TypeError, match=r"wrong_base.updated_base: /params/hidden/kernel must"):
            pfl.simulate(wrong(), one, 1)
    finally:
        del pfl.core.ALGORITHMS["wrong_base"]
