"""Whole simulations of each task: their losses, scores and metrics, and what they refuse."""

import functools

import jax
import numpy as np
import pytest
from sklearn import metrics as sk

import fedjax_pfl as pfl
from fedjax_pfl.models.objectives import OBJECTIVES

TRAIN, TEST = (5, 1, 9, 4), (7, 1, 0, 12)  # a client with one test sample, one with none
COUNT = sum(TRAIN) + sum(TEST)


def partition():
    lists = np.split(np.arange(COUNT), np.cumsum([*TRAIN, *TEST])[:-1])
    return pfl.Partition.from_lists(lists[: len(TRAIN)], lists[len(TRAIN) :])


def dataset(task):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 3)).astype(np.float32)
    if task == "next_token":
        x = rng.integers(1, 5, size=(COUNT, 6))
        y = np.roll(x, -1, axis=1)
        y[:, -1] = -1
        return pfl.dataset_from_arrays("toy", x, y, vocab_size=5, task=task)
    y = x @ rng.normal(size=(3, 3)) + 0.1 * rng.normal(size=(COUNT, 3))
    if task == "classification":
        return pfl.dataset_from_arrays("toy", x, y.argmax(1), num_classes=3)
    return pfl.dataset_from_arrays("toy", x, y if task == "regression" else y > 0, task=task)


@functools.cache
def simulated(task):
    data, (metrics, model, how) = dataset(task), OWN[task]
    federation = pfl.federate(
        data, partition(), model, metrics=metrics, client_execution=how, batch_size=4,
        learning_rate=0.1, eval_batch_size=5,
    )  # fmt: skip
    result = pfl.simulate(pfl.make_algorithm("local"), federation, 3, matrix_rounds=[])
    return data, federation, result


def a_table(key, inputs):
    """Logits of the next token for each token, with no regard to the others."""
    return {"head": jax.random.normal(key, (5, 5))}


def outputs(data, federation, result):
    """(outputs, labels) of each client's test samples and final model, None without samples."""
    stack, (samples, labels) = result.final.models()["personalized"], data.pool()
    for client, own in enumerate(partition().test.lists()):
        model = jax.tree.map(lambda leaf, n=client: leaf[0, n], stack)
        if not len(own):
            yield None
            continue
        yield np.asarray(federation.task.predict(model, samples[own])), labels[own]


CASES = {
    "classification": {
        "accuracy": lambda o, y: sk.accuracy_score(y, o.argmax(1)),
        "class_1_accuracy": lambda o, y: (
            (o.argmax(1) == 1)[y == 1].mean() if (y == 1).any() else np.nan
        ),
        "macro_f1": lambda o, y: sk.f1_score(y, o.argmax(1), average="macro"),
    },
    "regression": {
        "mse": lambda o, y: sk.mean_squared_error(y, o),
        "mae": lambda o, y: sk.mean_absolute_error(y, o),
        "r2": lambda o, y: sk.r2_score(y, o) if len(y) > 1 else np.nan,
    },
    "multi_label": {
        "label_accuracy": lambda o, y: 1 - sk.hamming_loss(y, o > 0),
        "exact_match": lambda o, y: sk.accuracy_score(y, o > 0),
    },
    "next_token": {
        "perplexity": lambda o, y: np.exp(_nats(o, y).mean()),
        "token_accuracy": lambda o, y: (o.argmax(-1) == y)[y >= 0].mean(),
    },
}
OWN = {
    "classification": (["per_class_accuracy", "macro_f1"], "softmax", 2),
    "regression": (["mae", "r2"], "softmax", "vmap"),
    "multi_label": (["exact_match"], "softmax", "map"),
    "next_token": (["token_accuracy"], (a_table, lambda params, ids: params["head"][ids]), "map"),
}


def _nats(o, y):
    e = np.exp(o - o.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return -np.log(np.take_along_axis(p, np.maximum(y, 0)[..., None], -1)[..., 0])[y >= 0]


@pytest.mark.costly
@pytest.mark.parametrize("task", CASES)
def test_scores_are_those_of_each_client_s_test_samples(task):
    data, federation, result = simulated(task)
    assert result.measures == federation.measures
    assert result.measures[0] == OBJECTIVES[task].main_metric
    for name, fn in CASES[task].items():
        got = result.values(metric=name)[0, 0, -1]
        wanted = [np.nan if o is None else fn(*o) for o in outputs(data, federation, result)]
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-6)


def test_lower_is_better(tmp_path):
    """The best round, the worst tenth and patience of a regression; and the result's files."""
    _, _, result = simulated("regression")
    errors = result.values()[0, 0]  # [E, N]
    assert result.worst_decile()[0, 0] == np.nanmax(errors[-1])
    assert result.headline("best")[0, 0] == pytest.approx(np.nanmean(errors, axis=1).min())
    sizes = result.test_sizes
    assert result.pooled()[0, 0, -1] == pytest.approx(
        np.nansum(errors[-1] * sizes) / sizes.sum(), rel=1e-6
    )
    summary = result.summary()
    assert summary["mse"]["best_mean"] == pytest.approx(np.nanmean(errors, axis=1).min())
    assert [one["better"] for one in summary["measures"]] == ["lower", "lower", "higher"]
    assert "MSE ↓" in result.table() and "final mean MSE" in repr(result)
    with pytest.raises(pfl.InputError, match=r"'accuracy'. Valid: mae, mse, r2"):
        result.accuracy()
    result.save(tmp_path / "saved")
    again = pfl.Result.load(tmp_path / "saved")
    assert again.measures == result.measures and again.table() == result.table()


REGRESSION = "this data set's task is regression, which has none"


@pytest.mark.parametrize("name", ["cwfedavg", "fedproto", "fedrod", "sfl"])
def test_algorithms_that_need_classes_refuse_others(name):
    federation = pfl.federate(dataset("regression"), partition(), "mlp")
    with pytest.raises(
        pfl.InputError, match=rf"{name} needs a class for each sample.*{REGRESSION}"
    ):
        pfl.Simulation(pfl.make_algorithm(name), federation).check()


def test_what_else_needs_classes():
    data = dataset("regression")
    federation = pfl.federate(data, partition(), "mlp")
    pfl.Simulation(pfl.make_algorithm("sfl", {"graph": "neighbours"}), federation).check()
    pfl.Simulation(pfl.make_algorithm("fedphp"), federation).check()
    with pytest.raises(pfl.InputError, match="fedphp needs a class for each sample"):
        distilling = pfl.make_algorithm("fedphp", {"regularizer": "distillation"})
        pfl.Simulation(distilling, federation).check()
    for options in (
        {"batch_order": "by_class"},
        {"extra_loss": pfl.training.WeightDistribution(1.0)},
    ):
        with pytest.raises(pfl.InputError, match="needs a class for each sample"):
            pfl.federate(data, partition(), "mlp", **options)
    with pytest.raises(
        pfl.InputError, match=r"'dirichlet' deals samples by class.* use 'by_column' or 'iid'"
    ):
        pfl.make_partition("dirichlet", data, 3, 0)
    assert pfl.make_partition("iid", data, 3, 0).num_clients == 3


def test_models_have_the_outputs_of_the_task():
    with pytest.raises(pfl.InputError, match=r"outputs \[batch, 6, 5\] for the task next_token"):
        pfl.federate(dataset("next_token"), partition(), (lambda k, x: {}, lambda p, x: 1.0 * x))
    with pytest.raises(pfl.InputError, match=r"one output for a text.*Use 'char_lstm'"):
        pfl.federate(dataset("next_token"), partition(), "fasttext")
    with pytest.raises(pfl.InputError, match="Unknown option of model 'char_lstm'"):
        options = {"hidden": 4, "per_token": True}
        pfl.models.make_model("char_lstm", (6,), 5, vocab_size=5, **options, none=1)


def test_the_lstm_has_an_output_after_each_token():
    options = {"hidden": 4, "layers": 1, "embedding": 2}
    data = dataset("next_token")
    made = pfl.federate(data, partition(), "char_lstm", model_options=options)
    model = jax.eval_shape(made.initial_model, jax.random.key(0))
    logits = jax.eval_shape(made.task.predict, model, jax.ShapeDtypeStruct((7, 6), "int32"))
    assert logits.shape == (7, 6, 5)


def test_functions_that_are_no_metrics():
    data = dataset("regression")
    for fn, said in (
        (lambda o, y, v: o, r"got an array \[3, 3\] of float32"),
        (abs, "takes exactly one"),
    ):
        with pytest.raises(pfl.InputError, match=rf"Metric 'mine' must be a function.*{said}"):
            pfl.federate(data, partition(), "mlp", metrics=[pfl.models.Metric("mine", fn)])


@pytest.mark.parametrize(
    ("y", "task", "said"),
    [
        (np.zeros(4), "classification", "--data_option=task=regression"),
        (["a"] * 4, "regression", "must be numbers"),
        ([0, 1, np.nan, 2], "regression", "1 NaN or infinite values"),
        (np.zeros((4, 2, 2)), "regression", r"\[4\] or \[4, K\]"),
        (np.full((4, 2), 2), "multi_label", "must be 0 or 1, got '2..2'"),
        (np.zeros(4, int), "multi_label", r"must be \[4, K\]"),
        (np.zeros((4, 3), int), "next_token", "vocab_size must be given"),
        (np.zeros(4, int), "regresion", "Did you mean 'regression'"),
    ],
)
def test_labels_that_a_task_does_not_have(y, task, said):
    with pytest.raises(pfl.InputError, match=said):
        pfl.dataset_from_arrays("toy", np.ones((4, 3)), y, task=task)
