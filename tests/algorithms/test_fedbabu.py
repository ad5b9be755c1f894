"""FedBABU against its reference, its frozen head, and its fine-tuning."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from fedjax_pfl.testing.toys import assert_close, states_of, toy_federation
from tests.algorithms.comparison import Variant, comparison
from tests.algorithms.harness import PATTERNS, Case, assert_losses, maker, stack
from tests.algorithms.norms import ConvNorm, assert_everyones
from tests.engine.finals import final_in
from tests.references import fedbabu

TUNED = {"fine_tune_epochs": 2, "fine_tune_rate": 0.2, "fine_tune_momentum": 0.5}
TUNING = {"tuning_rate": 0.2, "tuning_momentum": 0.5}
SGD = {"momentum": 0.5, "weight_decay": 0.1}


algorithm = maker("fedbabu")


def tuning_batches(case, epochs=2):
    return case.batches("adapt", replace(case.federation.schedule, epochs=epochs))[-1]


def tuning(one):
    """The authors tune for five epochs."""
    epochs = one.settings.get("fine_tune_epochs", 5)
    options = SGD if one.variant == "size" else {}
    return {"tuning_batches": tuning_batches(one.case, epochs), **options}


def check_body(now):
    """A published form sets the head's gradient to 0; weight decay still moves it."""
    assert_everyones(now.state, now.wanted["personalized"], f"round {now.t}")
    assert_close(now.state.private, now.before.private, "heads", 0)
    assert now.state.server["params"]["head"]["kernel"] is None
    now.assert_mean()


def check_tuned(one):
    assert_losses(one.records[-1], one.case, "personalized", one.wanted[-1]["tuned"])
    if one.case.scored:
        assert np.isnan(one.records[0]["scores"]["personalized/test/loss"]).all()


test_reference, test_contract = comparison(
    "fedbabu",
    fedbabu.run,
    variants={"uniform": TUNED, "size": Variant({"weighting": "size"}, options=SGD)},
    ours=("fine_tune_epochs",),
    renamed={"fine_tune_rate": "tuning_rate", "fine_tune_momentum": "tuning_momentum"},
    given=tuning,
    scores={"global": "personalized"},
    check=check_body,
    finish=check_tuned,
)


def trained(**settings):
    """(case, what a run ends with)."""
    case, ours = Case(**PATTERNS["partial-map"]), algorithm(**TUNED)
    state = case.run_rounds(ours)[0][-1]
    return case, final_in(state, replace(ours, **settings), case.federation, case.rounds)


def reference(case, **options):
    setting = case.setting()
    return fedbabu.run(setting, tuning_batches=tuning_batches(case), **TUNING, **options)[-1]


@pytest.mark.costly
@pytest.mark.parametrize("part", ["head", "body"])
def test_fine_tuning_of_a_part(part):
    case, final = trained(part=part)
    models = jax.tree.map(lambda leaf: leaf[0], final.models())
    assert_close(models["personalized"], stack(reference(case, part=part)["tuned"]), part)


@pytest.mark.costly
def test_personalize_fine_tunes_as_for_training_clients():
    case, final = trained()
    made = jax.tree.map(lambda leaf: leaf[0], final.personalize(case.federation))
    wanted = reference(case)
    assert_close(made, stack(wanted["tuned"]), "new clients")
    counted = case.federation.with_training(local_steps=1)
    steps = jax.tree.map(lambda leaf: leaf[0], final.personalize(counted))
    batches = case.batches("adapt", replace(counted.schedule, shuffle=True))[-1]
    everything = list(wanted["global"])
    one = [
        fedbabu.descend(wanted["global"], everything, own, case.x, case.y, 0.2) for own in batches
    ]
    assert_close(steps, stack(one), "one step")


@pytest.mark.costly
def test_no_global_model_with_local_batch_norm():
    ours, federation = algorithm(), toy_federation(model=ConvNorm(), batch_norm="local")
    final = final_in(states_of(ours, federation, 0)[-1], ours, federation, 1)
    assert "global" not in jax.eval_shape(final.models)
