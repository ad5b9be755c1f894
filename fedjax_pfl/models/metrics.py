"""Metrics: functions of all outputs of a client's model.

Scoring gathers the outputs on a client's samples, since an AUC or an R2 is not a sum over
minibatches, and calls `fn(outputs, labels, valid)`. Rows that are not `valid` are padding.
Undefined values are NaN, such as the AUC of a client with one class.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_pfl.models.objectives import OBJECTIVES, Objective
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.errors import (
    USER_DEFINED,
    InputError,
    first_line,
    require,
    require_name,
    unknown_name,
)
from fedjax_pfl.utils.metric_names import BETTER, HIGHER, LOWER, Measure
from fedjax_pfl.utils.name_matching import suggestions
from fedjax_pfl.utils.registries import F, registering

BINS = 15  # bins of the expected calibration error
PER_CLASS = "per_class_accuracy"


@dataclass(frozen=True)
class Metric:
    """A number of one client's model.

    Attributes:
      name: name in scores and tables.
      fn: `fn(outputs [n, ...], labels [n, ...], valid [n]) -> []`, traced; None for a measure of
        the task itself.
      better: "higher" or "lower".
      fraction: whether it is in 0..1.
      pools: see `Measure`.
      changes: function of samples [B, ...], as stored, before they are scaled, for a metric of
        changed samples, such as images with a trigger; None for the samples themselves.
    """

    name: str
    fn: Callable[..., Any] | None
    better: str = HIGHER
    fraction: bool = False
    pools: bool = False
    changes: Callable[[jax.Array], jax.Array] | None = None

    @property
    def measure(self) -> Measure:
        return Measure(self.name, self.better, self.fraction, self.pools)


class Registered(NamedTuple):
    """An entry of `METRICS`; empty `tasks` mean all tasks."""

    metric: Metric
    tasks: tuple[str, ...]


METRICS: dict[str, Registered] = {}


@checked
def register_metric(
    name: str, *, better: str, fraction: bool = False, tasks: Sequence[str] = ()
) -> Callable[[F], F]:
    """Return a decorator that registers `fn(outputs, labels, valid) -> number of a client`.

    Args:
      name: name of the metric.
      better: "higher" or "lower".
      fraction: whether it is in 0..1, so that tables show percentages.
      tasks: names of the tasks that it applies to; all by default.

    Raises:
      InputError: an invalid name or another function's, or an unknown direction or task.
    """
    _check(name, better)
    for task in tasks:
        require_name("task", task, OBJECTIVES)

    def entry(fn: Callable[..., Any]) -> Registered:
        return Registered(Metric(name, fn, better, fraction), tuple(tasks))

    return registering("metric", METRICS, name, entry)


def _check(name: Any, better: Any) -> None:
    good = isinstance(name, str) and name.replace("_", "").isalnum() and name.isascii()
    require(good, "The name of a metric", name, "letters, digits and _")
    taken = {"loss", *(one.name for task in OBJECTIVES.values() for one in task.measures)}
    require(name not in taken, "The name of a metric", name, f"none of {', '.join(sorted(taken))}")
    require_name("direction of a metric", better, BETTER)


def names_for(objective: Objective) -> list[str]:
    """Return the names of a task's metrics except its main metric."""
    own = [one.name for one in objective.measures[1:]]
    own += [PER_CLASS] if objective.classes else []
    return own + [n for n, one in METRICS.items() if not one.tasks or objective.name in one.tasks]


def resolve_metrics(metrics: Any, objective: Objective, num_classes: int) -> tuple[Metric, ...]:
    """Return a task's metrics, each once.

    Args:
      metrics: names and `Metric`s; "per_class_accuracy" is one for each class.
      objective: the task's objective.
      num_classes: C.

    Raises:
      InputError: not a list, a name that the task doesn't have, an entry that is neither a name nor
        a `Metric`, an invalid `Metric`, or two of one name.
    """
    listed = isinstance(metrics, Sequence) and not isinstance(metrics, str | bytes)
    require(listed, "metrics", metrics, "a list of names, such as ['macro_f1']")
    known, by_name = names_for(objective), {}
    own = {one.name: one for one in objective.measures}
    for one in metrics:
        if isinstance(one, Metric):
            _check(one.name, one.better)
            new = [one]
        elif not isinstance(one, str):
            raise InputError(
                f"A metric is a name or a pfl.models.Metric(name, function, better=...), got "
                f"{type(one).__name__}."
            )
        elif one in METRICS and one not in known:
            tasks = " and ".join(METRICS[one].tasks)
            raise InputError(
                f"Metric {one!r} is for {tasks}; the data set's task is {objective.name}, which "
                f"has {', '.join(known)}."
            )
        elif one == objective.main_metric.name:
            continue  # always measured
        elif one not in known:
            near = suggestions(one, known)
            hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else USER_DEFINED
            raise unknown_name(f"metric of {objective.name}", one, known, hint=hint)
        elif one in own:
            how = own[one]
            new = [Metric(one, None, how.better, how.fraction, how.pools)]
        elif one == PER_CLASS:
            new = [Metric(f"class_{c}_accuracy", ClassAccuracy(c), fraction=True)
                   for c in range(num_classes)]  # fmt: skip
        else:
            new = [METRICS[one].metric]
        for metric in new:
            require(
                by_name.setdefault(metric.name, metric) == metric,
                "metrics", metric.name, "each name once",
            )  # fmt: skip
    return tuple(by_name.values())


def check_metrics(
    metrics: Sequence[Metric], outputs: jax.ShapeDtypeStruct, labels: jax.ShapeDtypeStruct
) -> None:
    """Raise `InputError` unless every function returns one number, by shapes of one sample."""

    def several(one, count=3):
        return jax.ShapeDtypeStruct((count, *one.shape), one.dtype)

    floating = jnp.issubdtype(labels.dtype, jnp.floating)
    labels = jax.ShapeDtypeStruct(labels.shape, outputs.dtype if floating else labels.dtype)
    valid = jax.ShapeDtypeStruct((3,), bool)
    for one in metrics:
        if one.fn is None:
            continue
        allowed = "a function (outputs, labels, valid) of a client's samples, to one number"
        try:
            shape = jax.eval_shape(one.fn, several(outputs), several(labels), valid)
        except Exception as error:
            raise InputError(
                f"Metric {one.name!r} must be {allowed}: {first_line(error)}"
            ) from error
        if not isinstance(shape, jax.ShapeDtypeStruct):
            raise InputError(
                f"Metric {one.name!r} must be {allowed}, got a {type(shape).__name__}."
            )
        real = not jnp.issubdtype(shape.dtype, jnp.complexfloating)
        require(real and not shape.shape, f"Metric {one.name!r}", shape, allowed)


def _mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the mean of the values with a weight, or NaN without any."""
    total = jnp.sum(weights, dtype=values.dtype)
    mean = jnp.sum(jnp.where(weights, values, 0)) / jnp.maximum(total, 1)
    return jnp.where(total > 0, mean, jnp.nan)


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy on a client's samples of one class."""

    number: int

    def __call__(self, outputs: jax.Array, labels: jax.Array, valid: jax.Array) -> jax.Array:
        right = jnp.argmax(outputs, axis=1) == labels
        return _mean(right.astype(outputs.dtype), valid & (labels == self.number))


def _f1(predicted: jax.Array, true: jax.Array, dtype) -> jax.Array:
    """Return the mean F1 score over the columns of bool [n, C] that either one has."""
    both = jnp.sum(predicted & true, axis=0, dtype=dtype)
    either = jnp.sum(predicted, axis=0, dtype=dtype) + jnp.sum(true, axis=0, dtype=dtype)
    return _mean(2 * both / jnp.maximum(either, 1), either > 0)


@register_metric("macro_f1", better=HIGHER, fraction=True, tasks=("classification", "multi_label"))
def macro_f1(outputs: jax.Array, labels: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean F1 score over the classes (or labels) in a client's samples or predictions."""
    if labels.ndim == 2:
        predicted, true = outputs > 0, labels == 1
    else:
        classes = jnp.arange(outputs.shape[1])
        predicted, true = (x[:, None] == classes for x in (jnp.argmax(outputs, axis=1), labels))
    predicted, true = (x & valid[:, None] for x in (predicted, true))
    return _f1(predicted, true, outputs.dtype)


def _ranked(scores: jax.Array, positive: jax.Array, valid: jax.Array) -> jax.Array:
    """Return the fraction of pairs of a positive and a negative sample in correct order.

    Ties count half; NaN without such pairs. NaN scores are below all others, so that the value is
    0.5 if all outputs are NaN.
    """
    scores = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    negative = valid & ~positive
    others = jnp.sort(jnp.where(negative, scores, jnp.inf))
    count = jnp.sum(negative, dtype=jnp.int32)
    below, upto = (
        jnp.minimum(jnp.searchsorted(others, scores, side=side), count)
        for side in ("left", "right")
    )
    part = (below + upto).astype(scores.dtype) / (2 * jnp.maximum(count, 1))
    return jnp.where(count > 0, _mean(part, valid & positive), jnp.nan)


@register_metric("auc", better=HIGHER, fraction=True, tasks=("classification", "multi_label"))
def auc(outputs: jax.Array, labels: jax.Array, valid: jax.Array) -> jax.Array:
    """Area under the ROC curve of each class (or label) against the others.

    The mean is over the classes that some of the client's samples have, and some don't.
    """
    if labels.ndim == 2:
        scores, true = outputs, labels == 1
    else:
        scores = jax.nn.softmax(outputs)
        true = labels[:, None] == jnp.arange(outputs.shape[1])
    each = jax.vmap(_ranked, (1, 1, None))(scores, true, valid)
    return _mean(each, ~jnp.isnan(each))


@register_metric("ece", better=LOWER, fraction=True, tasks=("classification",))
def ece(outputs: jax.Array, labels: jax.Array, valid: jax.Array) -> jax.Array:
    """Expected calibration error with 15 bins of equal width."""
    p = jax.nn.softmax(outputs)
    sure, right = jnp.max(p, axis=1), jnp.argmax(p, axis=1) == labels
    at = jnp.clip(jnp.ceil(sure * BINS).astype(jnp.int32) - 1, 0, BINS - 1)
    gap = jnp.where(valid, right.astype(p.dtype) - sure, 0)
    apart = jnp.abs(jnp.zeros(BINS, p.dtype).at[at].add(gap))
    count = jnp.sum(valid, dtype=p.dtype)
    return jnp.where(count > 0, jnp.sum(apart) / jnp.maximum(count, 1), jnp.nan)


@register_metric("r2", better=HIGHER, tasks=("regression",))
def r2(outputs: jax.Array, labels: jax.Array, valid: jax.Array) -> jax.Array:
    """Coefficient of determination, mean over the outputs whose labels differ."""
    there = valid[:, None]
    count = jnp.maximum(jnp.sum(valid, dtype=labels.dtype), 1)
    mean = jnp.sum(jnp.where(there, labels, 0), axis=0) / count
    apart = jnp.sum(jnp.where(there, (labels - mean) ** 2, 0), axis=0)
    error = jnp.sum(jnp.where(there, (labels - outputs) ** 2, 0), axis=0)
    # Equal labels, whatever the rounding of their mean.
    first = labels[jnp.argmax(valid)]
    differ = jnp.any(there & (labels != first), axis=0)
    return _mean(1 - error / jnp.where(differ, apart, 1), differ)
