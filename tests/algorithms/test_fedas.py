"""FedAS against its reference, new clients, and what its alignment and information are of."""

from dataclasses import replace

import flax.linen as nn
import jax
import numpy as np
import pytest

from fedjax_pfl.engine.round_facts import round_facts
from fedjax_pfl.engine.runs import one_run
from fedjax_pfl.testing.toys import run_rounds, toy_federation
from tests.algorithms.comparison import comparison
from tests.algorithms.harness import maker
from tests.references import fedas
from tests.references.local_sgd import sgd

algorithm = maker("fedas")


def passes(one):
    """Batches of the alignment and, whoever took part before, of one pass over all samples."""
    case = one.case
    usual, epochs = case.federation.schedule, one.algorithm.align_epochs
    size, once = one.algorithm.align_batch, usual.one_pass()
    align = replace(usual, epochs=epochs, steps=None, batch_size=size, drop_last=False)
    none = [[[] for _ in range(case.num_clients)]] * case.rounds
    fisher = case.batches("fisher", once, starts=case.everyone)[0]
    return {
        "align_batches": case.batches("align", align) if epochs else none,
        "fisher_batches": [fisher] * case.rounds,
    }


def run_reference(s, *, fisher_batches, **options):
    return fedas.run(s, fisher_batches=fisher_batches[0], **options)


def check_weights(now):
    np.testing.assert_array_equal(now.clients["numbers_up"], now.present)
    weights = [now.wanted["weights"].get(i, 0.0) for i in range(now.case.num_clients)]
    np.testing.assert_allclose(now.record["matrices"]["mixing"], [weights], 1e-9)


def new_clients(one, made):
    """They train the server's body and the mean of all heads."""
    last, (batches, given) = one.states[-1], one.newcomers()
    head = jax.tree.map(lambda leaf: leaf.mean(0), last.own["params"]["head"])
    start = {"hidden": last.server["params"]["hidden"], "head": head}
    return [sgd(start, own, *given) for own in batches]


test_reference, test_contract = comparison(
    "fedas",
    run_reference,
    settings={"align_rate": 0.4},
    variants={
        "default": {},
        "long": {"align_epochs": 2, "align_batch": 3},
        "unaligned": {"align_epochs": 0},
    },
    ours=("align_epochs", "align_batch"),
    given=passes,
    states={"server.params.hidden": "body.hidden", "own": "personalized"},
    scores={"personalized": "personalized"},
    steps=("batches", "align_batches", "fisher_batches"),
    check=check_weights,
    new_clients=new_clients,
)


def test_alignment_and_information_drop_no_samples():
    federation = toy_federation(drop_last=True)
    facts = round_facts(one_run(algorithm(align_batch=3)), algorithm().prepare(federation))
    assert {(one.batch_size, one.drop_last) for one in facts.schedules if one.shuffle} == {
        (3, False), (federation.schedule.batch_size, True)
    }  # fmt: skip
    assert not any(one.drop_last for one in facts.schedules if not one.shuffle)


class EvaluatedOnly(nn.Module):
    """A network that predicts nothing in training."""

    def setup(self):
        self.fc, self.head = nn.Dense(5), nn.Dense(3)

    def features(self, x):
        return nn.tanh(self.fc(x))

    def __call__(self, x, train: bool = False):
        return self.head(self.features(x)) * (0.0 if train else 1.0)


@pytest.mark.costly
def test_fisher_in_evaluation_mode_and_alignment_without_heads():
    """Only the alignment moves this network; weight decay of its own would reach the head."""
    federation = toy_federation(model=EvaluatedOnly(), weight_decay=0.1, learning_rate=1e-12)
    (before, after), (record,) = run_rounds(algorithm(align_rate=0.5), federation, 1, scored=())
    np.testing.assert_allclose(record["matrices"]["mixing"].sum(), 1)
    moved = [np.abs(after.own["params"][n]["kernel"] - before.own["params"][n]["kernel"]).max()
             for n in ("fc", "head")]  # fmt: skip
    assert moved[0] > 1e-4 and moved[1] < 1e-9
