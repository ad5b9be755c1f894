"""Metrics against scikit-learn, on padded clients of all kinds."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sk

import fedjax_pfl as pfl
from fedjax_pfl.models import metrics
from fedjax_pfl.models.metrics import (
    METRICS,
    ClassAccuracy,
    check_metrics,
    names_for,
    resolve_metrics,
)
from fedjax_pfl.models.objectives import OBJECTIVES

N, C = 24, 4  # rows, padding included
SIZES = (N, 17, 1, 9, 0)  # one sample; the fourth client has one class; the last one none
CLIENTS = len(SIZES)


def clients(seed=0):
    """Scores with ties, classes, which rows are samples; the others are garbage."""
    rng = np.random.default_rng(seed)
    outputs = np.round(rng.normal(size=(CLIENTS, N, C)), 1).astype(np.float32)
    classes = rng.integers(0, C - 1, size=(CLIENTS, N)).astype(np.int32)  # nobody has the last one
    classes[3] = 2
    valid = np.arange(N) < np.array(SIZES)[:, None]
    outputs[~valid], classes[~valid] = 1e3, C - 1
    return outputs, classes, valid


def measured(fn, outputs, labels, valid):
    return np.asarray(jax.jit(jax.vmap(fn))(outputs, labels, valid))


def expected(fn, outputs, labels, valid):
    """`fn` of each client's own samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            fn(o[v].astype(float), y[v]) if v.any() else np.nan
            for o, y, v in zip(outputs, labels, valid, strict=True)
        ]


def softmax(outputs):
    return np.asarray(jax.nn.softmax(jnp.asarray(outputs, jnp.float32)), float)


def macro_f1(outputs, labels):
    return sk.f1_score(labels, outputs.argmax(1), average="macro")


def auc(outputs, labels):
    """Over the classes that some samples have and some have not."""
    scores, found = softmax(outputs), []
    for c in range(C):
        if 0 < (labels == c).sum() < len(labels):
            found.append(sk.roc_auc_score(labels == c, scores[:, c]))
    return np.mean(found) if found else np.nan


def ece(outputs, labels):
    p = softmax(outputs)
    sure, right = p.max(1), p.argmax(1) == labels
    total = 0.0
    for low in range(15):
        inside = (sure > low / 15) & (sure <= (low + 1) / 15)
        if inside.any():
            total += inside.sum() * abs(right[inside].mean() - sure[inside].mean())
    return total / len(labels)


@pytest.mark.costly
@pytest.mark.parametrize("wanted", [macro_f1, auc, ece])
def test_of_classes(wanted):
    outputs, labels, valid = clients()
    got = measured(getattr(metrics, wanted.__name__), outputs, labels, valid)
    np.testing.assert_allclose(got, expected(wanted, outputs, labels, valid), atol=2e-6)


def test_of_each_class():
    outputs, labels, valid = clients()
    got = measured(ClassAccuracy(2), outputs, labels, valid)

    def recall(outputs, labels):
        mine = labels == 2
        return (outputs.argmax(1)[mine] == 2).mean() if mine.any() else np.nan

    np.testing.assert_allclose(got, expected(recall, outputs, labels, valid), atol=1e-6)


def test_of_several_labels():
    outputs, labels, valid = clients(1)
    labels = (np.random.default_rng(2).random((CLIENTS, N, C)) < 0.4).astype(np.int32)
    labels[..., 3] = 0  # a label that nobody has
    labels[~valid] = 1

    def f1(outputs, labels):
        guessed = outputs > 0
        there = (guessed | (labels == 1)).any(0)
        if not there.any():
            return np.nan
        return sk.f1_score(labels[:, there], guessed[:, there], average="macro")

    def area(outputs, labels):
        found = [
            sk.roc_auc_score(labels[:, k], outputs[:, k])
            for k in range(C)
            if 0 < labels[:, k].sum() < len(labels)
        ]
        return np.mean(found) if found else np.nan

    for fn, wanted in ((metrics.macro_f1, f1), (metrics.auc, area)):
        got = measured(fn, outputs, labels, valid)
        np.testing.assert_allclose(got, expected(wanted, outputs, labels, valid), atol=2e-6)


def test_r2():
    outputs, _, valid = clients(3)
    labels = np.random.default_rng(4).normal(5, 1, size=outputs.shape).astype(np.float32)
    labels[3, :, 1:] = 0.1  # of one output alone differ the numbers of the fourth client
    labels[~valid] = np.nan

    def wanted(outputs, labels):
        some = [k for k in range(C) if np.ptp(labels[:, k])]
        return np.mean([sk.r2_score(labels[:, k], outputs[:, k]) for k in some]) if some else np.nan

    got = measured(metrics.r2, outputs, labels, valid)
    np.testing.assert_allclose(got, expected(wanted, outputs, labels, valid), rtol=2e-4)


@pytest.mark.costly
def test_the_measures_that_are_summed():
    outputs, classes, _ = clients(5)
    outputs, classes = outputs[0], classes[0]
    numbers = np.random.default_rng(6).normal(size=(N, C)).astype(np.float32)
    labels = (numbers > 0).astype(np.int32)

    def values(task, outputs, labels):
        task = OBJECTIVES[task]
        sums = np.asarray(jax.jit(task.sample_statistics)(outputs, labels)).sum(axis=0)
        return {name: float(value) for name, value in task.values(sums, N).items()}

    result = values("classification", outputs, classes)
    assert result == pytest.approx({"accuracy": sk.accuracy_score(classes, outputs.argmax(1))})
    result = values("regression", outputs, numbers)
    error, apart = sk.mean_squared_error(numbers, outputs), sk.mean_absolute_error(numbers, outputs)
    assert result == pytest.approx({"mse": error, "mae": apart})
    result = values("multi_label", outputs, labels)
    exact = sk.accuracy_score(labels, outputs > 0)
    assert result == pytest.approx(
        {"label_accuracy": 1 - sk.hamming_loss(labels, outputs > 0), "exact_match": exact}
    )
    texts = outputs.reshape(6, 4, C)
    following = classes.reshape(6, 4).copy()
    following[0, 2:] = -1
    result, there = values("next_token", texts, following), following >= 0
    p = softmax(texts)[there]
    loss = sk.log_loss(following[there], p / p.sum(1, keepdims=True), labels=range(C))
    right = (texts.argmax(-1) == following)[there].mean()
    assert result == pytest.approx({"perplexity": np.exp(loss), "token_accuracy": right}, rel=1e-5)
    assert np.isnan([*values("next_token", texts, np.full_like(following, -1)).values()]).all()


def test_losses_of_several_labels_and_tokens():
    logits, labels = np.array([[2.0, -1.0], [50.0, 0.0]]), np.array([[1, 0], [0, 1]])
    wanted = -np.log(1 / (1 + np.exp([-2.0, -1.0]))).mean()
    got = jax.jit(OBJECTIVES["multi_label"].losses)(logits, labels)
    np.testing.assert_allclose(got[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(got[1], (50 + np.log(2)) / 2, rtol=1e-5)  # no overflow
    task = OBJECTIVES["next_token"]
    got = jax.jit(task.losses)(np.zeros((2, 3, 5)), np.array([[0, 1, -1], [-1, -1, -1]]))
    np.testing.assert_allclose(got, [np.log(5), 0], rtol=1e-6)


def test_metrics_are_chosen_by_name():
    regression, classes = OBJECTIVES["regression"], OBJECTIVES["classification"]
    names = [
        one.name for one in resolve_metrics(["per_class_accuracy", "auc", "accuracy"], classes, 3)
    ]
    assert names == ["class_0_accuracy", "class_1_accuracy", "class_2_accuracy", "auc"]
    assert resolve_metrics(["mae"], regression, 0)[0].measure == regression.measures[1]
    assert names_for(regression) == ["mae", "r2"]
    bad = {
        "is for classification and multi_label; the data set's task is regression": ["auc"],
        "Unknown metric of regression 'ma'. Did you mean 'mae'": ["ma"],
        "must be a list of names": "mae",
        "is a name or a pfl.models.Metric": [abs],
        "each name once": [pfl.models.Metric("one", abs), pfl.models.Metric("one", max)],
        "none of accuracy": [pfl.models.Metric("loss", abs)],
        "letters, digits and _": [pfl.models.Metric("a/b", abs)],
        "direction": [pfl.models.Metric("one", abs, better="up")],
    }
    for said, given in bad.items():
        with pytest.raises(pfl.InputError) as error:
            resolve_metrics(given, regression, 0)
        assert said in str(error.value)


def test_a_metric_of_ones_own(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", dict(METRICS))

    @pfl.models.register_metric("spread", better="lower", tasks=["regression"])
    def spread(outputs, labels, valid):
        return jnp.max(jnp.where(valid[:, None], outputs, 0))

    (made,) = resolve_metrics(["spread"], OBJECTIVES["regression"], 0)
    assert made.fn is spread and not made.measure.higher
    with pytest.raises(pfl.InputError, match="is for regression"):
        resolve_metrics(["spread"], OBJECTIVES["classification"], 3)
    pfl.models.register_metric("spread", better="lower")(
        spread
    )  # as a cell of a notebook, run again
    for name in ("spread", "auc"):
        with pytest.raises(pfl.InputError, match=f"metric {name!r} is registered already"):
            pfl.models.register_metric(name, better="higher")(jnp.mean)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "got a NoneType"),
        ((1.0, 2.0), "got a tuple"),
        (jnp.zeros(3), r"got an array \[3\] of float"),
        (jnp.complex64(1j), r"got an array \[\] of complex64"),
    ],
)
def test_a_metric_is_one_number(value, said):
    outputs, labels = jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
    one = pfl.models.Metric("mine", lambda outputs, labels, valid: value, better="higher")
    with pytest.raises(pfl.InputError, match=f"'mine' must be a function .*, {said}"):
        check_metrics([one], outputs, labels)


@pytest.mark.costly
def test_auc_of_outputs_that_are_no_numbers():
    """A diverged model orders no samples: it is no better than chance."""
    labels, valid = jnp.arange(N) % C, jnp.ones(N, bool)
    assert METRICS["auc"].metric.fn(jnp.full((N, C), jnp.nan), labels, valid) == 0.5
