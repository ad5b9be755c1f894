"""Scores against plain NumPy, loss matrices, and copies adapted before they are scored."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Adaptation, Broadcast, Context, InputError, keys, trees
from fedjax_pfl.algorithms.local import State
from fedjax_pfl.federation.optimizers import SGD
from fedjax_pfl.federation.schedules import Schedule
from fedjax_pfl.simulation.evaluation import evaluate
from fedjax_pfl.testing.toys import SEEDS, TEST_SIZES, TRAIN_SIZES, assert_close, toy_federation
from fedjax_pfl.training.scoring import loss_matrix, score
from tests.models.test_normalization import NormNet

COUNT = 5
ROWS = jnp.arange(COUNT)
KEY = jax.random.key(9)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@cache
def models_of(network=None):
    """A stack of five unlike models; the toy network's by default."""
    federation = toy_federation(model=network)
    return jax.jit(jax.vmap(federation.initial_model))(jax.random.split(KEY, COUNT))


def logits(models, i, x):
    """The toy network in NumPy."""
    fc, head = (jax.tree.map(np.asarray, models["params"][name]) for name in ("fc_0", "head"))
    hidden = np.maximum(x @ fc["kernel"][i] + fc["bias"][i], 0)
    return hidden @ head["kernel"][i] + head["bias"][i]


def samples(federation, i, split):
    part = jax.device_get(federation.data.split(split))
    at = part.index[part.offset[i] :][: part.size[i]]
    return np.asarray(federation.data.samples, np.float64)[at], np.asarray(federation.data.labels)[
        at
    ]


def counted(federation, models, i, split, model=None):
    """(correct predictions, summed cross-entropy) of client i in NumPy."""
    x, y = samples(federation, i, split)
    out = logits(models, i if model is None else model, x)
    losses = np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y]
    return int((out.argmax(1) == y).sum()), float(losses.sum())


scored = jax.jit(score, static_argnames="split")


@pytest.mark.parametrize(
    "split", ["test", "validation", pytest.param("train", marks=pytest.mark.slow)]
)
def test_score_counts_ragged_clients(split):
    federation = toy_federation(eval_batch_size=3)  # several batches, the last one not full
    models = models_of()
    correct, loss = scored(federation, models, ROWS, split=split)
    wanted = [counted(federation, models, i, split) for i in range(COUNT)]
    np.testing.assert_array_equal(correct, [c for c, _ in wanted])
    np.testing.assert_allclose(loss, [total for _, total in wanted], 1e-10)
    if split == "test":
        assert TEST_SIZES[4] == 0 and correct[4] == 0 and loss[4] == 0


def test_score_of_one_shared_model_under_vmap_and_for_some_clients():
    federation = toy_federation(client_execution="vmap")
    models = models_of()
    one = Broadcast(trees.row(models, 2))
    correct, _ = scored(federation, one, jnp.array([3, 0]), split="test")
    wanted = [counted(federation, models, i, "test", model=2)[0] for i in (3, 0)]
    np.testing.assert_array_equal(correct, wanted)


@pytest.mark.parametrize("execution", ["map", "vmap"])
def test_loss_matrix(execution):
    federation = toy_federation(client_execution=execution)
    models = models_of()
    measure = jax.jit(partial(loss_matrix, split="test"))
    rows = jnp.array([4, 0, 3])
    losses, samples = measure(federation, models, rows)
    wanted = np.array(
        [
            [counted(federation, models, i, "test", q)[1] / max(TEST_SIZES[i], 1) for q in range(5)]
            for i in (4, 0, 3)
        ]
    )
    assert not wanted[0].any()  # client 4 has no test samples
    np.testing.assert_allclose(losses, wanted, 1e-10)
    np.testing.assert_array_equal(samples, [0, 15, 20])  # five candidates on 0, 3 and 4 samples
    active = jnp.array([True, False, True])
    losses, samples = measure(federation, models, rows, active=active)
    np.testing.assert_allclose(losses, wanted * active[:, None], 1e-10)
    np.testing.assert_array_equal(samples, [0, 0, 20])
    choice = jnp.array([[0, 0], [4, 1], [2, 3]])
    chosen, samples = measure(federation, models, rows, choice=choice)
    np.testing.assert_array_equal(samples, [0, 6, 8])
    np.testing.assert_allclose(chosen, np.take_along_axis(wanted, np.asarray(choice), 1), 1e-10)


def test_candidates_get_the_private_leaves_of_the_clients():
    federation = toy_federation(share="head")
    models, rows = models_of(), jnp.array([3, 0])
    own = jax.tree.map(lambda leaf: leaf[rows], models)
    losses, _ = jax.jit(loss_matrix)(federation, models, rows, onto=own)
    for k, i in enumerate((3, 0)):
        body = jax.tree.map(lambda leaf, i=i: leaf[i], models["params"]["fc_0"])
        everywhere = jax.tree.map(lambda leaf: jnp.stack([leaf] * COUNT), body)
        mixed = {"params": {**models["params"], "fc_0": everywhere}}
        wanted = [counted(federation, mixed, i, "validation", q)[1] / 2 for q in range(COUNT)]
        np.testing.assert_allclose(losses[k], wanted, 1e-10)


def context(federation, t=0, total=3):
    cohort = federation.participation.cohort(keys.derive(KEY, "cohort"), t, federation.data.ids)
    return Context(federation, KEY, jnp.int32(t), jnp.int32(total), cohort)


@partial(jax.jit, static_argnames="how")
def adapted(federation, models, rows, how):
    return context(federation).adapt(models, rows, how)


def test_no_steps_of_adaptation_change_nothing():
    federation = toy_federation()
    models = models_of()
    assert_close(adapted(federation, models, ROWS, Adaptation(steps=0)), models, "0 steps", 0)


@pytest.mark.parametrize(
    ("leaves", "moves", "stays"),
    [
        ("head", "head", "fc_0"),
        pytest.param("body", "fc_0", "head", marks=pytest.mark.slow),
    ],
)
def test_adapting_the_head_moves_the_head_alone(leaves, moves, stays):
    federation = toy_federation()
    models = models_of()
    after = adapted(federation, models, ROWS, Adaptation(leaves=leaves))["params"]
    for name, before in models["params"][stays].items():
        np.testing.assert_array_equal(after[stays][name], before)
    for name, before in models["params"][moves].items():
        assert (after[moves][name] != before).reshape(COUNT, -1).any(1).all()


@pytest.mark.parametrize("leaves", ["head", pytest.param("body", marks=pytest.mark.slow)])
def test_running_statistics_are_the_bodys(leaves):
    federation = toy_federation(model=NormNet())
    models = models_of(NormNet())
    before = models["batch_stats"]["bn"]
    after = adapted(federation, models, ROWS, Adaptation(leaves=leaves))["batch_stats"]["bn"]
    for name, values in before.items():
        moved = (np.asarray(after[name]) != values).any(axis=1)
        # A batch of one sample has a mean but no variance: client 2's stays.
        wanted = [leaves == "body" and not (name == "var" and i == 2) for i in range(COUNT)]
        np.testing.assert_array_equal(moved, wanted, name)


def test_a_copy_whose_adaptation_overflows_is_the_unadapted_model():
    federation = toy_federation(diverging=3)
    models = models_of()
    after = adapted(federation, models, ROWS, Adaptation())
    assert_close(trees.row(after, 3), trees.row(models, 3), "client 3", 0)
    for i in (0, 1, 2, 4):
        assert (after["params"]["head"]["bias"][i] != models["params"]["head"]["bias"][i]).all()


@pytest.mark.slow
def test_adapting_some_clients_of_a_shared_model():
    federation = toy_federation()
    models = models_of()
    all_of_them = jax.tree.map(lambda x: jnp.broadcast_to(x[1], x.shape), models)
    how = Adaptation(steps=2)
    every = adapted(federation, all_of_them, ROWS, how)
    some = adapted(federation, Broadcast(trees.row(models, 1)), jnp.array([4, 2]), how)
    assert_close(some, jax.tree.map(lambda x: x[jnp.array([4, 2])], every), "clients 4 and 2")


def quarter(t, total):
    return 0.25


def twice(rate):
    return optax.sgd(2 * rate)


@pytest.mark.parametrize(
    ("how", "trained"),
    [
        (
            {},
            {"batch_size": 16, "learning_rate": 0.4, "learning_rate_schedule": quarter},
        ),
        ({"batch_size": 16, "learning_rate": 0.1}, {"batch_size": 2, "learning_rate": 0.7}),
        (
            {"batch_size": 16, "learning_rate": 0.05, "optimizer": twice},
            {"momentum": 0.9, "weight_decay": 0.5},
        ),
    ],
    ids=["as the round", "of its own", "with an optimizer of its own"],
)
def test_one_step_of_adaptation_is_one_step_of_gradient_descent(how, trained):
    federation = toy_federation(TRAIN_SIZES, **trained)
    models = models_of()
    moved = adapted(federation, models, ROWS, Adaptation(steps=1, **how))

    @jax.jit
    def step(model, batch):
        slope = jax.grad(lambda m: federation.task.loss(m, batch)[0])(model)
        return jax.tree.map(lambda m, g: m - 0.1 * g, model, slope)

    for i in range(COUNT):
        x, y = samples(federation, i, "train")
        fill = 10 - len(y)
        batch = pfl.Batch(
            np.pad(x, ((0, fill), (0, 0))), np.pad(y, (0, fill)), np.arange(10) < len(y)
        )
        wanted = step(jax.tree.map(lambda leaf, i=i: leaf[i], models), batch)
        assert_close(jax.tree.map(lambda leaf, i=i: leaf[i], moved), wanted, f"client {i}")


class Unhashable(list):
    def __call__(self, rate):
        return twice(rate)


def test_adapted_only_at_the_last_round_and_scored_every_so_often():
    federation = toy_federation()
    result = pfl.simulate(
        pfl.make_algorithm("local"),
        federation,
        5,
        seeds=SEEDS,
        eval_every=2,
        chunk=8,
        adapt=Adaptation(steps=0, when="last"),
    )
    np.testing.assert_array_equal(result.eval_rounds, [2, 4, 5])
    late, plain = result.accuracy("adapted"), result.accuracy()
    assert late.shape == plain.shape == (2, 1, 3, 5)
    assert np.isnan(late[:, :, :2]).all()
    np.testing.assert_array_equal(late[:, :, 2], plain[:, :, 2])  # no steps: unadapted
    assert np.isnan(plain[..., 4]).all() and np.isfinite(plain[..., :4]).all()
    assert result.accuracy(split="validation").shape == (2, 1, 3, 5)
    size = np.array(TEST_SIZES)
    correct = np.nan_to_num(plain * size)
    np.testing.assert_allclose(correct, np.rint(correct), atol=1e-12)
    np.testing.assert_allclose(result.pooled(), correct.sum(-1) / 10)
    np.testing.assert_allclose(result.curve(), np.nanmean(plain, -1))
    np.testing.assert_allclose(result.worst_decile(), np.nanmin(plain[:, :, -1], -1))


def test_copies_of_models_that_are_there_at_the_end_alone_are_scored_there():
    """Not copies of the zeros that stand for the algorithm's own adapted models before."""
    algorithm = pfl.make_algorithm("fedavg_ft", {"budget": True})
    federation = toy_federation(dtype="float32", validation_size=0)
    result = pfl.simulate(algorithm, federation, 2, adapt=Adaptation(steps=0))
    copies, own = result.scores["adapted/test/loss"], result.scores["personalized/test/loss"]
    assert np.isnan(copies[:, :, 0]).all()
    np.testing.assert_array_equal(copies, own)
    assert np.isfinite(copies[:, :, 1, :4]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, r"epochs of adaptation must be .*at least 0, got -1"),
        ({"steps": -1}, r"adapt_steps must be .*at least 0, got -1"),
        ({"leaves": "heads"}, "Did you mean 'head'"),
        ({"when": "lasts"}, "Did you mean 'last'"),
        ({"learning_rate": -0.1}, r"adapt_learning_rate must be .* of at least 0, got -0\.1"),
        ({"learning_rate": float("nan")}, "adapt_learning_rate must be .* got nan"),
        ({"learning_rate": 1e39}, r"adapt_learning_rate must be .* got 1e\+39"),
        ({"batch_size": 0}, "adapt_batch_size must be a whole number of at least 1, got 0"),
        ({"optimizer": 0.1}, r"optimizer of adaptation must be a function .*, got 'float'"),
        ({"optimizer": SGD(momentum=2)}, r"momentum must be in \[0, 1\), got 2"),
        ({"optimizer": Unhashable()}, "optimizer of adaptation must be hashable"),
        ({"budget": 2}, "budget of adaptation must be True or False, got 2"),
        ({"budget": True, "steps": 2}, "steps must be None with a budget, got 2"),
        ({"proximal": -1}, "proximal weight of adaptation must be .* at least 0, got -1"),
    ],
)
def test_adaptation_is_checked(options, message):
    with pytest.raises(InputError, match=message):
        Adaptation(**options).validate()


def test_batches_of_adaptation_are_shuffled_and_drop_what_a_rounds_do():
    local = Schedule(3, None, 5, drop_last=True, shuffle=False)
    assert Adaptation(2).schedule(local) == Schedule(2, None, 5, drop_last=True)
    assert Adaptation(2, 4, batch_size=3).schedule(Schedule()) == Schedule(2, 4, 3)


def test_a_budget_counts_minibatches_over_all_epochs_and_gives_everyone_some():
    for drop_last in (False, True):
        schedule = Adaptation(3, budget=True).schedule(Schedule(batch_size=5, drop_last=drop_last))
        sizes = jnp.array([0, 1, 4, 5, 8, 9, 10])
        assert schedule.total_steps(sizes).tolist() == [0, 3, 3, 3, 4, 5, 6]
        assert [schedule.total_steps(int(size)) for size in sizes] == [0, 3, 3, 3, 4, 5, 6]
        assert schedule.fitting(4).total_steps(sizes[:3]).tolist() == [0, 3, 3]
    with pytest.raises(InputError, match=r"30,000 epochs of a client with 100,000 samples are too"):
        Adaptation(30_000, batch_size=500, budget=True).schedule(Schedule()).check_counts(100_000)


def test_adaptation_says_what_it_is():
    assert str(Adaptation()) == "1 local epoch"
    assert str(Adaptation(optimizer=twice)) == "1 local epoch, optimizer twice"
    how = Adaptation(epochs=2, budget=True, proximal=0.5)
    said = "2 local epochs, minibatches counted over all of them, with a proximal term"
    assert str(how) == said
    own = SGD(0.9, nesterov=True, weight_decay=0.01)
    how = Adaptation(steps=2, leaves="head", batch_size=5, learning_rate=0.1, optimizer=own)
    assert str(how) == (
        "2 local steps of the head, minibatches of 5, learning rate 0.1, "
        "optimizer SGD (momentum 0.9, Nesterov, weight decay 0.01)"
    )


def test_scores_of_half_precision_models_are_float32():
    federation = toy_federation(dtype="bfloat16")
    algorithm = pfl.make_algorithm("local")

    def scores():
        ctx = context(federation)
        return evaluate(algorithm, ctx, algorithm.init(ctx))

    shapes = jax.eval_shape(scores)
    assert {str(s.dtype) for s in shapes.values()} <= {"float32", "float64"}


@pytest.mark.parametrize("rows", [None, (0, 1, 3)])
@pytest.mark.parametrize("execution", ["2", pytest.param("map", marks=pytest.mark.slow)])
def test_chunks_with_a_remainder_score_every_client_on_its_own(rows, execution):
    federation = toy_federation(client_execution=execution)
    models = models_of()

    @jax.jit
    def measure(federation, models):
        ctx = context(federation)
        return evaluate(pfl.make_algorithm("local"), ctx, State(models), rows=rows)

    scores = measure(federation, models)["personalized/validation/loss"]
    wanted = [counted(federation, models, i, "validation")[1] / 2 for i in range(COUNT)]
    chosen = np.isin(np.arange(COUNT), range(COUNT) if rows is None else rows)
    np.testing.assert_allclose(scores, np.where(chosen, wanted, np.nan), 1e-10)
