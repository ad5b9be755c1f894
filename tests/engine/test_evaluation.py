"""Scores against plain NumPy, loss matrices, and when adapted copies are scored."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl import Adaptation, Broadcast
from fedjax_pfl.algorithms.local import State
from fedjax_pfl.engine.evaluation import evaluate
from fedjax_pfl.testing.toys import SEEDS, TEST_SIZES, TanhNetwork, toy_federation
from fedjax_pfl.training.scoring import loss_matrix, score
from fedjax_pfl.utils import keys, trees
from tests.references import network
from tests.references.local_sgd import sgd
from tests.training.five import COUNT, KEY, context, models_of, samples

ROWS = jnp.arange(COUNT)


pytestmark = pytest.mark.usefixtures("double_precision")


def logits(models, i, x):
    """The toy network in NumPy."""
    fc, head = (jax.tree.map(np.asarray, models["params"][name]) for name in ("fc_0", "head"))
    hidden = np.maximum(x @ fc["kernel"][i] + fc["bias"][i], 0)
    return hidden @ head["kernel"][i] + head["bias"][i]


def counted(federation, models, i, split, model=None):
    """(correct predictions, summed cross-entropy) of client i in NumPy."""
    x, y = samples(federation, i, split)
    out = logits(models, i if model is None else model, x)
    losses = np.log(np.exp(out).sum(1)) - out[np.arange(len(y)), y]
    return int((out.argmax(1) == y).sum()), float(losses.sum())


scored = jax.jit(score, static_argnames="split")


@pytest.mark.costly
@pytest.mark.parametrize("split", ["test", "validation"])
def test_score_of_a_split_with_ragged_clients(split):
    federation = toy_federation(eval_batch_size=3)  # several batches, the last one not full
    models = models_of()
    correct, loss, _ = scored(federation, models, ROWS, split=split)
    wanted = [counted(federation, models, i, split) for i in range(COUNT)]
    np.testing.assert_array_equal(correct, [c for c, _ in wanted])
    np.testing.assert_allclose(loss, [total for _, total in wanted], 1e-10)
    if split == "test":
        assert TEST_SIZES[4] == 0 and correct[4] == 0 and loss[4] == 0


def test_score_of_one_shared_model_under_vmap_and_for_some_clients():
    federation = toy_federation(client_execution="vmap")
    models = models_of()
    one = Broadcast(trees.row(models, 2))
    correct, *_ = scored(federation, one, jnp.array([3, 0]), split="test")
    wanted = [counted(federation, models, i, "test", model=2)[0] for i in (3, 0)]
    np.testing.assert_array_equal(correct, wanted)


@pytest.mark.costly
def test_loss_matrix():
    federation = toy_federation(client_execution="map")
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


def test_padding_adds_nothing_and_losses_of_candidates_are_means():
    """Three samples in minibatches of two, whose labels a model of zeros misses by 1, 2 and 3."""
    x = np.arange(1, 5, dtype=np.float32)[:, None]
    data = pfl.dataset_from_arrays("line", x, x, task="regression")
    partition = pfl.Partition.from_lists([[3]], [[0, 1, 2]])
    federation = pfl.federate(data, partition, "softmax", eval_batch_size=2)
    shapes = jax.eval_shape(federation.initial_model, KEY)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), shapes)
    given = (federation, zeros, jnp.zeros(1, int), "test")
    sums, losses = jax.jit(lambda: (score(*given).sums, loss_matrix(*given)[0]))()
    np.testing.assert_allclose(sums, [[14, 6]], 1e-6)
    np.testing.assert_allclose(losses, [[14 / 3]], 1e-6)


@pytest.mark.costly
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


@pytest.mark.costly
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


@pytest.mark.costly
def test_copies_of_models_that_are_there_at_the_end_alone_are_scored_there():
    """Not copies of the zeros that stand for the algorithm's own adapted models before."""
    algorithm = pfl.make_algorithm("fedavg_ft", {"final_only": True})
    federation = toy_federation(dtype="float32", validation_size=0)
    result = pfl.simulate(algorithm, federation, 2, adapt=Adaptation(steps=0))
    copies, own = result.scores["adapted/test/loss"], result.scores["personalized/test/loss"]
    assert np.isnan(copies[:, :, 0]).all()
    np.testing.assert_array_equal(copies, own)
    assert np.isfinite(copies[:, :, 1, :4]).all()


@pytest.mark.costly
def test_a_trained_copy_took_one_more_local_training_of_the_federation():
    federation = toy_federation(
        model=TanhNetwork(), local_epochs=2, batch_size=3, learning_rate=0.2
    )
    algorithm = pfl.make_algorithm("fedavg")

    @jax.jit
    def measure(federation):
        ctx = context(federation)
        state = algorithm.init(ctx)
        return ctx.initial_model(), evaluate(algorithm, ctx, state, Adaptation())

    model, scores = measure(federation)
    model, split = jax.tree.map(np.asarray, (model["params"], federation.data.train))
    pool, labels = (np.asarray(a) for a in (federation.data.samples, federation.data.labels))
    for i in range(COUNT - 1):  # the last client has no test samples
        key, number = keys.of_round(KEY, "adapt", 0), int(federation.data.ids[i])
        steps = pfl.training.batch_indices(federation.schedule, split, key, number, i)
        assert len(steps) == 2 * -(-int(split.size[i]) // 3)
        copy = sgd(model, [np.asarray(batch) for (batch,) in steps], pool, labels, 0.2)
        x, y = samples(federation, i, "test")
        for name, params in (("trained", copy), ("personalized", model)):
            loss, _ = network.cross_entropy(network.logits(params, x), y)
            np.testing.assert_allclose(scores[f"{name}/test/loss"][i], loss, 1e-10)


def test_scores_of_half_precision_models_are_float32():
    federation = toy_federation(dtype="bfloat16")
    algorithm = pfl.make_algorithm("local")

    def scores():
        ctx = context(federation)
        return evaluate(algorithm, ctx, algorithm.init(ctx))

    shapes = jax.eval_shape(scores)
    assert {str(s.dtype) for s in shapes.values()} <= {"float32", "float64"}


@pytest.mark.parametrize("rows", [None, (0, 1, 3)])
def test_chunks_with_a_remainder_score_every_client_on_its_own(rows):
    drift = {"drift": "swap", "drift_rounds": [2, 3], "drift_share": 0.2}  # of client 0
    federation = toy_federation(client_execution="2", **drift)
    models = models_of()

    @jax.jit
    def measure(federation, models):
        ctx = context(federation, t=1)
        return evaluate(pfl.make_algorithm("local"), ctx, State(models), rows=rows)

    measured = measure(federation, models)
    scores = measured["personalized/validation/loss"]
    wanted = [counted(federation, models, i, "validation")[1] / 2 for i in range(COUNT)]
    chosen = np.isin(np.arange(COUNT), range(COUNT) if rows is None else rows)
    np.testing.assert_allclose(scores, np.where(chosen, wanted, np.nan), 1e-10)
    before = counted(federation, models, 0, "test")[1] / TEST_SIZES[0]  # others drifted never
    previous = measured["personalized/previous/loss"]
    np.testing.assert_allclose(previous, [before, *[np.nan] * (COUNT - 1)], 1e-10)
