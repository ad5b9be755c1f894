"""Objectives: the loss and the measures of each task.

Measures are sums over samples, which scoring adds up minibatch by minibatch. The first one is the
task's main metric. Metrics are functions of all outputs of a client's model, see `metrics`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from fedjax_pfl.models.kernels import forms
from fedjax_pfl.utils.errors import InputError, find_name, require, shown
from fedjax_pfl.utils.metric_names import ACCURACY, LOWER, Measure
from fedjax_pfl.utils.registries import registering

C = TypeVar("C", bound=type["Objective"])


@dataclass(frozen=True)
class Objective:
    """Loss and measures of a kind of task; hashable and static.

    Class attributes:
      name: name of the task, such as "regression".
      classes: whether each sample has one class, which partitions and algorithms may use.
      num_statistics: m, the numbers of each sample that are added up for `values`; 0: one bool,
        which is counted.
      per_token: whether a model has outputs for each token of a text.
      measures: the measures that `values` computes; the first is the main metric.
    """

    name: ClassVar[str] = ""
    classes: ClassVar[bool] = False
    num_statistics: ClassVar[int] = 0
    per_token: ClassVar[bool] = False
    measures: ClassVar[tuple[Measure, ...]] = ()

    @property
    def main_metric(self) -> Measure:
        return self.measures[0]

    def shape(self, sample: tuple[int, ...], width: int) -> tuple[int, ...]:
        """Return the shape of the outputs for one sample."""
        return (sample[0], width) if self.per_token else (width,)

    def losses(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Return the loss of every sample [B] for outputs [B, ...]."""
        raise NotImplementedError

    def sample_statistics(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
        """Return what is added up over samples: float [B, `num_statistics`], or bool [B]."""
        raise NotImplementedError

    def values(self, sums: Any, count: Any) -> dict[str, Any]:
        """Return the measures for sums [k] or [k, m] of sample statistics.

        They are over `count` [k] samples, at least one each.
        """
        raise NotImplementedError

    def mixed(self, outputs: jax.Array, weights: jax.Array) -> jax.Array:
        """Return the outputs [B, ...] of a mixture of K models with weights [K].

        With classes or tokens they are logarithms of the mean of the models' probabilities, as
        logits; otherwise the mean of the outputs.

        Args:
          outputs: [K, B, ...].
          weights: [K], not negative, with sum 1.
        """
        weights = weights.reshape(-1, *[1] * (outputs.ndim - 1))
        if self.classes or self.per_token:
            return jax.nn.logsumexp(jax.nn.log_softmax(outputs), axis=0, b=weights)
        return jnp.sum(weights * outputs, axis=0)


@dataclass(frozen=True)
class Classification(Objective):
    """Cross-entropy of logits [B, C]; labels int [B]."""

    name = "classification"
    classes = True
    measures = (ACCURACY,)

    def losses(self, outputs, labels):
        log_p = jax.nn.log_softmax(outputs)
        return -_of_labels(log_p, labels)

    def sample_statistics(self, outputs, labels):
        return jnp.argmax(outputs, axis=1) == labels

    def values(self, sums, count):
        return {"accuracy": sums / count}


@dataclass(frozen=True)
class Regression(Objective):
    """Mean squared error of outputs [B, K]; labels float [B, K]."""

    name = "regression"
    num_statistics = 2
    measures = (
        Measure("mse", LOWER, fraction=False, pools=True),
        Measure("mae", LOWER, fraction=False, pools=True),
    )

    def losses(self, outputs, labels):
        return jnp.mean((outputs - labels) ** 2, axis=1)

    def sample_statistics(self, outputs, labels):
        apart = outputs - labels
        return jnp.stack([jnp.mean(apart**2, axis=1), jnp.mean(jnp.abs(apart), axis=1)], axis=1)

    def values(self, sums, count):
        return {"mse": _error(sums[..., 0] / count), "mae": _error(sums[..., 1] / count)}


@dataclass(frozen=True)
class MultiLabel(Objective):
    """Sigmoid cross-entropy of logits [B, K], mean over the labels; labels int [B, K], 0 or 1."""

    name = "multi_label"
    num_statistics = 2
    measures = (Measure("label_accuracy", pools=True), Measure("exact_match", pools=True))

    def losses(self, outputs, labels):
        signed = jnp.where(labels == 1, outputs, -outputs)
        return jnp.mean(-jax.nn.log_sigmoid(signed), axis=1)

    def sample_statistics(self, outputs, labels):
        right = (outputs > 0) == (labels == 1)
        both = jnp.stack([jnp.mean(right, axis=1), jnp.all(right, axis=1)], axis=1)
        return both.astype(outputs.dtype)

    def mixed(self, outputs, weights):
        weights = weights[:, None, None]
        yes, no = (
            jax.nn.logsumexp(jax.nn.log_sigmoid(z), axis=0, b=weights) for z in (outputs, -outputs)
        )
        return yes - no

    def values(self, sums, count):
        return {"label_accuracy": sums[..., 0] / count, "exact_match": sums[..., 1] / count}


@dataclass(frozen=True)
class NextToken(Objective):
    """Cross-entropy of logits [B, T, V] of the next tokens; labels int [B, T], negative for none.

    A sample's loss is the mean over its tokens. Clients without any have no score.
    """

    name = "next_token"
    num_statistics = 3
    per_token = True
    measures = (Measure("perplexity", LOWER, fraction=False), Measure("token_accuracy"))

    def losses(self, outputs, labels):
        _, losses, count = self._of_tokens(outputs, labels)
        return losses / jnp.maximum(count, 1)

    def sample_statistics(self, outputs, labels):
        return jnp.stack(self._of_tokens(outputs, labels), axis=1)

    def values(self, sums, count):
        there, tokens = sums[..., 2] > 0, jnp.maximum(sums[..., 2], 1)
        right, losses = sums[..., 0] / tokens, _error(jnp.exp(sums[..., 1] / tokens))
        values = {"perplexity": losses, "token_accuracy": right}
        return {name: jnp.where(there, value, jnp.nan) for name, value in values.items()}

    def _of_tokens(self, outputs, labels):
        """Return each sample's correct predictions, summed losses and tokens, [B]."""
        there = labels >= 0
        log_p = jax.nn.log_softmax(outputs)
        known = _of_labels(log_p, jnp.maximum(labels, 0))
        losses = jnp.sum(jnp.where(there, -known, 0), axis=1)
        right = (jnp.argmax(outputs, axis=-1) == labels) & there
        each = (jnp.sum(x, axis=1, dtype=losses.dtype) for x in (right, there))
        right, count = each
        return right, losses, count


def _error(values: jax.Array) -> jax.Array:
    """Return errors, infinite instead of NaN if outputs are NaN."""
    return jnp.where(jnp.isnan(values), jnp.inf, values)


def _of_labels(log_p: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the values [..., C] at the labels [...], in the form of the platform."""
    if forms.picks_by_sum():
        of_label = labels[..., None] == jnp.arange(log_p.shape[-1], dtype=labels.dtype)
        return jnp.sum(jnp.where(of_label, log_p, 0), axis=-1)
    return jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]


CLASSIFICATION = Classification()
OBJECTIVES: dict[str, Objective] = {}


def register_objective(kind: C) -> C:
    """Register a subclass of `Objective` by its `name`; a class decorator.

    `federate(objective=NAME)` trains and scores by it instead of by the data set's objective.

    Raises:
      InputError: the name is another objective's, or the class lacks measures or a method.
    """
    is_objective = isinstance(kind, type) and issubclass(kind, Objective)
    require(is_objective, "objective", shown(kind), "a subclass of Objective")
    for name in ("losses", "sample_statistics", "values"):
        if getattr(kind, name) is getattr(Objective, name):
            raise InputError(f"The objective {kind.__name__} must define {name}.")
    measured = len(kind.measures) > 0 and all(isinstance(one, Measure) for one in kind.measures)
    require(measured, f"measures of {kind.__name__}", shown(kind.measures), "a tuple of Measures")
    return registering("objective", OBJECTIVES, kind.name, lambda one: one())(kind)


for _kind in (Classification, Regression, MultiLabel, NextToken):
    register_objective(_kind)


def objective_of(name: str) -> Objective:
    """Return an objective by name."""
    return OBJECTIVES[find_name("objective", name, OBJECTIVES)]
