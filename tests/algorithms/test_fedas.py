"""FedAS against its reference, and its limits."""

import flax.linen as nn
import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import assert_close, run_rounds, toy_federation
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_models,
    assert_steps,
    over,
)
from tests.engine.finals import final_in
from tests.references import fedas
from tests.references.local_sgd import sgd

VARIANTS = {
    "default": {"align_rate": 0.4},
    "long": {"align_rate": 0.4, "align_epochs": 2, "align_batch": 3},
    "unaligned": {"align_epochs": 0},
}


def algorithm(**settings):
    return pfl.make_algorithm("fedas", settings)


@over(PATTERNS, [("partial-map", "long"), ("full-vmap", "default")], VARIANTS)
def test_reference(pattern, variant):
    case, settings = Case(**PATTERNS[pattern]), VARIANTS[variant]
    ours = algorithm(**settings)
    *align, _, once = ours.schedules(case.federation)
    none = [[[] for _ in range(case.num_clients)]] * case.rounds
    common = case.common(
        align_batches=case.batches("align", align[0]) if align else none,
        fisher_batches=case.batches("fisher", once, starts=case.everyone)[0],
    )
    rate = settings.get("align_rate", 0.01)
    wanted = fedas.run(case.initial(), case.clients(), 3, **common, align_rate=rate)
    states, records = case.run_rounds(ours)
    for t, (state, record, models) in enumerate(zip(states[1:], records, wanted, strict=True)):
        own = models["personalized"]
        assert_close(state.server["params"]["hidden"], models["body"]["hidden"], f"body in {t}")
        assert_models(state.own, own, f"models in round {t}")
        assert_losses(record, case, "personalized", own)
        assert_steps(
            record,
            case.cohorts[t],
            common["batches"][t],
            common["align_batches"][t],
            common["fisher_batches"],
        )
        present = case.present(t)
        np.testing.assert_array_equal(record["clients"]["numbers_up"], present)
        weights = [models["weights"].get(i, 0.0) for i in range(case.num_clients)]
        np.testing.assert_allclose(record["matrices"]["mixing"], [weights], 1e-9)
    if pattern == "partial-map":
        assert_new_clients(case, ours, states[-1])


def assert_new_clients(case, ours, state):
    """They train for a round from the server's body and the mean of all heads."""
    state = jax.tree.map(np.asarray, state)
    head = jax.tree.map(lambda leaf: leaf.mean(0), state.own["params"]["head"])
    start = {"hidden": state.server["params"]["hidden"], "head": head}
    batches = case.batches("personalize", starts=case.everyone)[-1]
    wanted = [sgd(start, own, case.x, case.y, case.rates[-1]) for own in batches]
    made = final_in(state, ours, case.federation, case.rounds).personalize(case.federation)
    assert_models(jax.tree.map(lambda leaf: leaf[0], made), wanted, "new clients")


@pytest.mark.thorough
def test_who_diverges_keeps_its_model_and_has_no_weight():
    federation = toy_federation(dtype="float32", validation_size=0, diverging=3)
    (before, after), (record,) = run_rounds(algorithm(), federation, 1, scored=())
    own = (state.own["params"]["fc_0"]["bias"] for state in (before, after))
    np.testing.assert_array_equal(np.not_equal(*own).any(axis=1), [1, 1, 1, 0, 1])
    assert np.isfinite(after.server["params"]["fc_0"]["kernel"]).all()
    np.testing.assert_array_equal(record["matrices"]["mixing"][0] > 0, [1, 1, 1, 0, 1])


def test_the_alignment_and_the_information_are_of_all_samples():
    align, usual, once = algorithm(align_batch=3).schedules(toy_federation(drop_last=True))
    assert usual.drop_last and not align.drop_last and not once.drop_last
    assert align.batch_size == 3


class EvaluatedOnly(nn.Module):
    """A network that predicts nothing in training."""

    def setup(self):
        self.fc, self.head = nn.Dense(5), nn.Dense(3)

    def features(self, x):
        return nn.tanh(self.fc(x))

    def __call__(self, x, train: bool = False):
        return self.head(self.features(x)) * (0.0 if train else 1.0)


@pytest.mark.thorough
def test_information_is_of_evaluation_mode_and_heads_are_not_aligned():
    """Only the alignment moves this network; weight decay of its own would reach the head."""
    federation = toy_federation(model=EvaluatedOnly(), weight_decay=0.1, learning_rate=1e-12)
    (before, after), (record,) = run_rounds(algorithm(align_rate=0.5), federation, 1, scored=())
    np.testing.assert_allclose(record["matrices"]["mixing"].sum(), 1)
    moved = [np.abs(after.own["params"][n]["kernel"] - before.own["params"][n]["kernel"]).max()
             for n in ("fc", "head")]  # fmt: skip
    assert moved[0] > 1e-4 and moved[1] < 1e-9
