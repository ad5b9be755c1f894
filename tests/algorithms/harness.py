"""Feeds the NumPy references with exactly what the library draws: cohorts, batches, first model."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl.testing.toys import (
    SEEDS,
    TRAIN_SIZES,
    TanhNetwork,
    assert_close,
    run_rounds,
    states_of,
    toy_federation,
)
from fedjax_pfl.utils import keys
from tests.references.local_sgd import sgd
from tests.references.network import loss_and_gradient
from tests.references.setting import Setting

ROUNDS = 3
DECAY = 0.9


def maker(name, defaults=None):
    """A function that makes an algorithm with these hyperparameters, unless told otherwise."""

    def algorithm(**settings):
        return pfl.make_algorithm(name, {**(defaults or {}), **settings})

    return algorithm


def dense(width, name):
    """A layer whose first weights are drawn in double precision where models have it.

    Drawn in single precision they differ by a rounding from one program to another.
    """
    return nn.Dense(width, name=name, param_dtype=jnp.result_type(float))


class TwoLayers(nn.Module):
    """The references' network without a method for its features."""

    @nn.compact
    def __call__(self, x):
        return dense(3, "head")(nn.tanh(dense(5, "hidden")(x)))


class FourLayers(nn.Module):
    """Three hidden layers, in the alphabetical order of their names."""

    @nn.compact
    def __call__(self, x):
        for name, width in (("hidden_a", 5), ("hidden_b", 3), ("hidden_c", 4)):
            x = nn.tanh(dense(width, name)(x))
        return dense(3, "head")(x)


@jax.jit
def cohort_of(participation, ids, key, t):
    """The cohort of round t of the run with this key."""
    return participation.cohort(keys.derive(key, "cohort"), t, ids)


@jax.jit
def initial_model(federation, key):
    return federation.initial_model(key)


def network_loss(model, x, y):
    """The loss of one of the references' networks."""
    return loss_and_gradient(model, x, y)[0]


class Case:
    """One federation with a reference's inputs, for a number of rounds.

    Attributes:
      scored: whether its rounds score models; without, the program is smaller.
      cohorts: per round, the clients that start and arrive in it.
      starts, arrivals: per round, the clients that begin training and whose uploads arrive.
    """

    def __init__(self, rounds=ROUNDS, model=None, scored=True, **options):
        self.rounds, self.scored = rounds, scored
        count = len(options.get("train_sizes", TRAIN_SIZES))
        options.setdefault("order", np.roll(np.arange(count), 2))  # rows are not ids
        if "local_steps" not in options:
            options.setdefault("local_epochs", 2)
        self.federation = toy_federation(
            model=model or TanhNetwork(),
            learning_rate_decay=DECAY,
            **{"validation_size": 0} | options,
        )
        data = self.federation.data
        self.key = jax.random.key(SEEDS[0])
        self.num_clients = self.federation.num_clients
        self.x, self.y = np.asarray(data.samples, np.float64), np.asarray(data.labels)
        self.rates = [0.3 * DECAY**t for t in range(rounds)]
        cohorts = [jax.device_get(self.cohort(t)) for t in range(rounds)]
        self.cohorts, self.starts, self.arrivals = (
            [cohort.rows[getattr(cohort, who)].tolist() for cohort in cohorts]
            for who in ("mask", "starts", "arrives")
        )
        self.everyone = [list(range(self.num_clients))] * rounds

    def cohort(self, t):
        federation = self.federation
        return cohort_of(federation.participation, federation.data.ids, self.key, np.int32(t))

    def initial(self, purpose="init"):
        """A first model as the library draws it, as plain arrays."""
        model = initial_model(self.federation, keys.derive(self.key, purpose))
        return jax.tree.map(np.asarray, model["params"])

    def samples(self, i, split="train"):
        part = self.federation.data.split(split)
        return np.asarray(part.index)[int(part.offset[i]) :][: int(part.size[i])]

    @property
    def sizes(self):
        return np.asarray(self.federation.data.train.size)

    def among(self, rows):
        """Which clients are at these rows, bool [N]."""
        return np.isin(np.arange(self.num_clients), rows)

    def present(self, t):
        """Which clients take part in round t, bool [N]."""
        return self.among(self.cohorts[t])

    def batches(self, purpose="train", schedule=None, single=True, starts=None):
        """batches[t][i]: the batches of client i in round t, if it began in `starts`."""
        starts = self.starts if starts is None else starts
        schedule = schedule or self.federation.schedule
        split = jax.tree.map(np.asarray, self.federation.data.train)
        rounds = []
        for t in range(self.rounds):
            key = keys.of_round(self.key, purpose, t)
            walked = [
                pfl.training.batch_indices(
                    schedule,
                    split,
                    key,
                    int(self.federation.data.ids[i]),
                    i,
                    self._walked(schedule, i, starts[:t]),
                )
                for i in range(self.num_clients)
            ]
            walked = [[[np.asarray(b) for b in s] for s in client] for client in walked]
            rounds.append([[s[0] if single else s for s in client] for client in walked])
        return rounds

    def _walked(self, schedule, i, starts):
        """Steps that client i took in earlier rounds, of which only unshuffled batches know."""
        earlier = sum(i in begun for begun in starts)
        return 0 if schedule.shuffle else earlier * int(schedule.total_steps(self.sizes[i]))

    def setting(self, **changes):
        """What references are given."""
        return Setting(
            self.initial(),
            self.clients(),
            self.rounds,
            self.x,
            self.y,
            self.sizes,
            self.cohorts,
            self.batches(),
            self.rates,
            self.starts,
            self.arrivals,
        ).but(**changes)

    def clients(self):
        return [{"samples": self.samples(i)} for i in range(self.num_clients)]

    def test_losses(self, models, loss=network_loss):
        """Mean test loss of each client's model, NaN for clients without test samples."""
        losses = []
        for i, model in enumerate(models):
            at = self.samples(i, "test")
            losses.append(loss(model, self.x[at], self.y[at]) if len(at) else np.nan)
        return np.array(losses)

    def run_rounds(self, algorithm):
        scored = None if self.scored else ()
        return run_rounds(algorithm, self.federation, self.rounds, scored=scored)

    def states_of(self, algorithm):
        return states_of(algorithm, self.federation, self.rounds)


def sampled_federation(**options):
    """The federation of "partial-map" and of the shared checks: their programs serve limits too.

    That is, those that score; options that are numbers or samples leave the programs as they are.
    """
    known = {"model": TanhNetwork(), "validation_size": 0, "local_epochs": 2}
    return toy_federation(**known | {"participation": 0.6} | options)


def stack(models):
    """[{...}, {...}] -> {"params": leaves [N, ...]}."""
    return {"params": jax.tree.map(lambda *leaves: np.stack(leaves), *models)}


def unstack(models):
    """A stack of the library's parameters, leaves [N, ...], as a list of N models."""
    count = len(jax.tree.leaves(models)[0])
    return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), dict(models)) for i in range(count)]


def assert_models(actual, models, what):
    """A stack of the library's against the reference's list of models."""
    assert_close(dict(actual), stack(models), what)


def assert_losses(record, case, name, models, alice=None, loss=network_loss):
    """The models that were scored are the reference's: their test losses agree.

    With `alice`, hers is the only one that is scored. The loss of a model is `loss(model, x, y)`.
    """
    assert bool(record["scores"]) == case.scored
    if not case.scored:
        return
    wanted = case.test_losses(models, loss)
    if alice is not None:
        wanted[np.arange(len(wanted)) != alice] = np.nan
    np.testing.assert_allclose(
        record["scores"][f"{name}/test/loss"], wanted, 1e-9, 1e-9, err_msg=name
    )


def mean_loss(case, model, *phases):
    """Mean loss over steps, each before the update, of phases (batches, rate, layers)."""
    losses = []
    for batches, rate, layers in phases:
        for at in batches:
            losses.append(network_loss(model, case.x[at], case.y[at]))
            model = sgd(model, [at], case.x, case.y, rate, layers=layers)
    return sum(losses) / max(len(losses), 1)


def assert_steps(record, who, *walks):
    """Each client of `who` took a gradient on every batch of `walks`; no other client took any.

    A walk holds the batches [i] of client i that a reference is fed with.
    """
    taken = [sum(len(batches) for batches in own) for own in zip(*walks, strict=True)]
    wanted = [count if i in who else 0 for i, count in enumerate(taken)]
    np.testing.assert_array_equal(record["clients"]["local_steps"], wanted)


# The first is the base, the second is costly, the others belong to the matrix. Of the second only
# models are compared, which makes a smaller program.
PATTERNS = {
    "partial-map": {"participation": 0.6},
    "full-vmap": {"client_execution": "vmap", "scored": False},
    "full-map-drop": {"drop_last": True},
    "partial-chunks": {"participation": 0.8, "client_execution": "2"},
    "single": {"participation": 0.2},
    "partial-vmap-seeds": {
        "participation": 0.6,
        "client_execution": "vmap",
        "seed_execution": "vmap",
    },
}

# For algorithms that know late uploads: in seven rounds a delay of two comes round twice.
LATE_ROUNDS = 7
LATE_PATTERNS = {
    "code-map": {"stragglers": {1: 1, 3: 2}},
    "paper-vmap": {
        "stragglers": {1: 1, 3: 2},
        "straggler_schedule": "paper",
        "client_execution": "vmap",
        "scored": False,
    },
    "code-drop": {"stragglers": {0: 3, 2: 1, 4: 2}, "drop_last": True},
    "nobody-arrives": {
        "stragglers": dict.fromkeys(range(5), 1),
        "straggler_schedule": "paper",
        "client_execution": "2",
    },
    "in-order": {"stragglers": {1: 1, 3: 2}, "batch_order": "by_class", "local_steps": 2},
    "code-vmap-seeds": {
        "stragglers": {1: 1, 3: 2},
        "client_execution": "vmap",
        "seed_execution": "vmap",
    },
    "punctual": {},
    "partial": {"participation": 0.6},
}
