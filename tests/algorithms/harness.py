"""Feeds the NumPy references with exactly what the library draws: cohorts, batches, first model."""

import flax.linen as nn
import jax
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl import keys
from fedjax_pfl.testing import SEEDS, assert_close, play, toy_federation
from tests.reference.network import loss_and_gradient

ROUNDS = 3
DECAY = 0.9


class TwoLayers(nn.Module):
    """The references' network: tanh between two linear layers, the same names of leaves."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(nn.tanh(nn.Dense(5, name="hidden")(x)))


class Case:
    """One federation and what a reference needs to know of it."""

    def __init__(self, **options):
        self.federation = toy_federation(
            model=TwoLayers(), learning_rate_decay=DECAY, **{"local_epochs": 2} | options
        )
        data = self.federation.data
        self.key = jax.random.key(SEEDS[0])
        self.num_clients = self.federation.num_clients
        self.x, self.y = np.asarray(data.samples, np.float64), np.asarray(data.labels)
        self.rates = [0.3 * DECAY**t for t in range(ROUNDS)]
        self.cohorts = [
            [int(row) for row in self.cohort(t).rows[np.asarray(self.cohort(t).mask)]]
            for t in range(ROUNDS)
        ]
        self.everyone = [list(range(self.num_clients))] * ROUNDS

    def cohort(self, t):
        key = keys.derive(self.key, "cohort")
        return self.federation.participation.cohort(key, t, self.federation.data.ids)

    def initial(self, purpose="init"):
        """A first model as the library draws it, as plain arrays."""
        model = self.federation.initial_model(keys.derive(self.key, purpose))
        return jax.tree.map(np.asarray, model["params"])

    def samples(self, i, split="train"):
        part = self.federation.data.split(split)
        return np.asarray(part.index)[int(part.offset[i]) :][: int(part.size[i])]

    @property
    def sizes(self):
        return np.asarray(self.federation.data.train.size)

    def batches(self, purpose="train", schedule=None, single=True):
        """batches[t][i]: what client i walks through in round t."""
        schedule = schedule or self.federation.schedule
        split = jax.tree.map(np.asarray, self.federation.data.train)
        rounds = []
        for t in range(ROUNDS):
            key = keys.of_round(self.key, purpose, t)
            walked = [
                pfl.batch_indices(schedule, split, key, int(self.federation.data.ids[i]), i)
                for i in range(self.num_clients)
            ]
            steps = [[s[0] if single else s for s in client] for client in walked]
            rounds.append([[np.asarray(b) for b in client] for client in steps])
        return rounds

    def common(self, **changes):
        """Keyword arguments that the references share."""
        return {
            "x": self.x,
            "y": self.y,
            "sizes": self.sizes,
            "cohorts": self.cohorts,
            "batches": self.batches(),
            "learning_rate": self.rates,
        } | changes

    def clients(self):
        return [{"samples": self.samples(i)} for i in range(self.num_clients)]

    def test_losses(self, models):
        """Mean test loss of each client's model, NaN for clients without test samples."""
        losses = []
        for i, model in enumerate(models):
            at = self.samples(i, "test")
            losses.append(
                loss_and_gradient(model, self.x[at], self.y[at])[0] if len(at) else np.nan
            )
        return np.array(losses)

    def play(self, algorithm):
        return play(algorithm, self.federation, ROUNDS)


def stack(models):
    """[{...}, {...}] -> {"params": leaves [N, ...]}."""
    return {"params": jax.tree.map(lambda *leaves: np.stack(leaves), *models)}


def assert_models(actual, models, what):
    """A stack of the library's against the reference's list of models."""
    assert_close(dict(actual), stack(models), what)


def assert_losses(record, case, name, models):
    """The models that were scored are the reference's: their test losses agree."""
    np.testing.assert_allclose(
        record["scores"][f"{name}/test/loss"], case.test_losses(models), 1e-9, 1e-9, err_msg=name
    )


# Full participation one client after the other in CI; the other patterns with `-m slow`.
PATTERNS = {
    "partial-map": {"participation_fraction": 0.6},
    "full-vmap": {"client_execution": "vmap"},
    "full-map-drop": {"drop_last": True},
    "partial-chunks": {"participation_fraction": 0.8, "client_execution": "2"},
    "single": {"participation_fraction": 0.2},
    "partial-vmap-seeds": {
        "participation_fraction": 0.6,
        "client_execution": "vmap",
        "seed_execution": "vmap",
    },
}
QUICK = ("partial-map", "full-vmap")
