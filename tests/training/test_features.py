"""Losses that see features and logits of the minibatch loss's own forward pass."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import mixing
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.models.task import LinenTask, as_task
from fedjax_pfl.testing.toys import toy_federation
from fedjax_pfl.training.local_step import LocalStep
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import per_client, per_server, struct
from tests.algorithms.harness import Case, TwoLayers, assert_models, dense
from tests.references.local_sgd import sgd
from tests.references.network import combine

TEMPERATURE, WEIGHT, SIZE = 0.5, 0.7, 4


pytestmark = pytest.mark.usefixtures("double_precision")


class Saying(nn.Module):
    """The references' network, which says its features."""

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(dense(5, "hidden")(x))
        self.sow("intermediates", "features", x)
        return dense(3, "head")(x)


class Dropping(nn.Module):
    """Dropout, batch-norm or both as a part of the features."""

    rate: float = 0.0
    norm: bool = False

    def setup(self):
        self.fc, self.head, self.drop = nn.Dense(5), nn.Dense(3), nn.Dropout(self.rate)
        self.bn = BatchNorm() if self.norm else lambda x, train, valid: x

    def features(self, x, train: bool = False, valid=None):
        return self.drop(self.bn(nn.tanh(self.fc(x)), train, valid), deterministic=not train)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


@struct
class State:
    server: Any = per_server()
    own: Any = per_client()


@struct
class Contrastive(pfl.Algorithm):
    """Features near the received model's and far from the client's last one's, as MOON."""

    weight: float = WEIGHT

    def check(self, federation):
        assert federation.num_features > 0

    def init(self, ctx):
        model = ctx.initial_model()
        return State(model, ctx.replicate(ctx.initial_model("own")))

    def round(self, ctx, state):
        def nearer(params, batch, received, client):
            features = ctx.federation.task.features
            near = cosines(batch.features, features(received, batch.inputs))
            far = cosines(batch.features, features(client.operand, batch.inputs))
            losses = jax.nn.softplus((far - near) / TEMPERATURE)
            mean = jnp.sum(jnp.where(batch.valid, losses, 0)) / jnp.sum(batch.valid)
            return self.weight * mean

        trained, cohort, _ = ctx.train(
            pfl.Broadcast(state.server),
            extra_loss=nearer,
            broadcast=state.server,
            operands=ctx.cohort.gather(state.own),
        )
        weights = mixing.by_size(ctx.sizes(), cohort.mask)
        server = mixing.weighted_sum(weights, trained, onto=state.server)
        own = cohort.scatter(state.own, trained)
        return State(server, own), ctx.record(cohort, mixing=weights)

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.own, rows)}


def cosines(a, b):
    """Of each row of a with that of b, [B]."""
    lengths = jnp.linalg.norm(a, axis=1) * jnp.linalg.norm(b, axis=1)
    return jnp.sum(a * b, axis=1) / lengths


def hidden(params, x):
    return np.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])


def contrastive_gradient(params, received, own, x):
    """Of the mean of w log(1 + exp((cos(h, p) - cos(h, g)) / T)) over the rows of x, by hand."""
    h = hidden(params, x)
    length = np.linalg.norm(h, axis=1, keepdims=True)

    def cosine(other):
        unit = other / np.linalg.norm(other, axis=1, keepdims=True)
        value = (h * unit).sum(axis=1, keepdims=True) / length
        return value, (unit - value * h / length) / length

    (near, near_slope), (far, far_slope) = (cosine(hidden(m, x)) for m in (received, own))
    pushed = 1 / (1 + np.exp((near - far) / TEMPERATURE))
    slope = WEIGHT / len(x) / TEMPERATURE * pushed * (far_slope - near_slope) * (1 - h**2)
    zero = {name: np.zeros_like(leaf) for name, leaf in params["head"].items()}
    return {"hidden": {"kernel": x.T @ slope, "bias": slope.sum(axis=0)}, "head": zero}


@pytest.mark.costly
def test_a_contrastive_loss_against_gradients_by_hand():
    case = Case(model=Saying(), participation=0.6)
    states = case.states_of(Contrastive())
    server, own, batches = case.initial(), [case.initial("own")] * 5, case.batches()
    for t, cohort in enumerate(case.cohorts):
        for i in cohort:
            params, last = server, own[i]
            for b in batches[t][i]:
                x = case.x[b]

                def extra(params, x=x, last=last, server=server):
                    return contrastive_gradient(params, server, last, x)

                params = sgd(params, [b], case.x, case.y, case.rates[t], extra)
            own[i] = params
        shares = case.sizes[cohort] / case.sizes[cohort].sum()
        server = combine(shares, [own[i] for i in cohort])
        assert_models(states[t + 1].own, own, f"models of round {t + 1}")


def forward(model, task):
    inputs = jax.random.normal(jax.random.key(2), (SIZE, 4))
    batch = pfl.training.Batch(inputs, jnp.zeros(SIZE, jnp.int32), jnp.ones(SIZE, bool))
    return jax.jit(task.forward)(model, batch, jax.random.key(3)), batch


@pytest.mark.parametrize(
    "net",
    [
        Dropping(0.5),
        *(pytest.param(n, marks=pytest.mark.costly) for n in (Dropping(norm=True), Saying())),
    ],
    ids=["drop", "norm", "sown"],
)
def test_features_are_those_that_the_head_saw(net):
    """With the dropout and the batch statistics of the same pass."""
    task = LinenTask(net, dtype="float64")
    model = jax.jit(task.initial_model)(jax.random.key(0), jnp.zeros((1, 4)))
    (_, after, seen), batch = forward(model, task)
    head = model["params"]["head"]
    np.testing.assert_allclose(seen.features @ head["kernel"] + head["bias"], seen.logits, 1e-12)
    assert set(after) == set(model)
    calm = task.features(model, batch.inputs)
    np.testing.assert_allclose(
        calm @ head["kernel"] + head["bias"], task.predict(model, batch.inputs), 1e-12
    )
    if not isinstance(net, Saying):
        assert np.abs(calm - seen.features).max() > 1e-3
    half = LinenTask(net, dtype="float64", compute_dtype="float16")
    assert jax.eval_shape(half.features, model, batch.inputs).dtype == "float64"


def products(extra_loss):
    """Matrix products of one local step's loss and gradient."""
    federation = toy_federation(model=Saying())
    model = federation.initial_model(jax.random.key(0))
    step = LocalStep(federation, 0.1, extra_loss=extra_loss)
    batch = forward(model, federation.task)[1]
    traced = jax.make_jaxpr(lambda m: step.loss_and_gradient(m, batch, None, None, None))(model)
    return str(traced).count("dot_general")


def test_there_is_no_second_forward_pass():
    plain = products(None)
    assert products(lambda p, batch, *_: jnp.sum(batch.features**2) + batch.logits.max()) == plain
    task = toy_federation(model=Saying()).task
    again = products(lambda p, b, *_: jnp.sum(task.features({"params": p}, b.inputs)))
    assert again > plain


@struct
class LongFeatures(pfl.training.ExtraLoss):
    def __call__(self, params, batch, client, plan):
        return 0.01 * jnp.sum(batch.features**2)


def test_networks_without_features_are_refused_where_they_are_asked_for():
    silent = toy_federation(model=TwoLayers())
    assert toy_federation().num_features == 5
    for ask in (
        lambda: silent.num_features,
        lambda: pfl.Simulation(Contrastive(), silent).check(),
        lambda: pfl.Simulation(
            pfl.make_algorithm("fedavg"),
            toy_federation(model=TwoLayers(), extra_loss=LongFeatures()),
        ).check(),
    ):
        with pytest.raises(pfl.InputError, match=r"does not define its features.*method"):
            ask()
    pfl.Simulation(pfl.make_algorithm("fedavg"), silent).check()
    pfl.Simulation(pfl.make_algorithm("fedavg"), toy_federation(extra_loss=LongFeatures())).check()


def test_features_in_the_outputs_of_a_user_s_task():
    class Own(pfl.models.FunctionTask):
        def apply(self, model, inputs, train, rng, valid):
            return pfl.models.Outputs(inputs @ model["params"], {}, features=inputs)

    pair = (lambda key, inputs: jnp.ones((4, 3)), lambda params, inputs: inputs @ params)
    model, inputs = {"params": jnp.ones((4, 3))}, jnp.ones((2, 4))
    np.testing.assert_array_equal(Own(*pair).features(model, inputs), inputs)
    with pytest.raises(pfl.InputError, match="the features of its Outputs"):
        as_task(pair).features(model, inputs)
