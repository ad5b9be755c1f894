"""Extra loss terms of local training, for all algorithms or a single one."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl.aggregation.leaf_plan import LeafPlan, trainable
from fedjax_pfl.aggregation.sharing import module_paths
from fedjax_pfl.federation.client import Client
from fedjax_pfl.models.task import ForwardedBatch
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.conversions import number
from fedjax_pfl.utils.errors import InputError, require_classes, require_name
from fedjax_pfl.utils.structs import struct
from fedjax_pfl.utils.typing import Tree

NO_REFERENCE = (
    "proximal needs reference parameters with the structure of one client's: pass "
    'ctx.train(..., broadcast=server["params"]) for one common reference, or '
    'operands=own["params"] for one per member.'
)
PENALTY = 2**31 - 4  # what a step's key is folded with for a federation's extra loss


class ExtraLoss:
    """Base class of `federate(extra_loss=...)`; a `struct`, so that its numbers are traced.

    The term is added to the minibatch loss of every local step, including `ctx.sgd_step`, and to
    full gradients. Algorithms that compute their own gradients call `Federation.penalty`.

    Attributes:
      couples_samples: whether the term of a minibatch of one sample depends on the client's other
        samples; it is then refused with sample-level differential privacy.
    """

    couples_samples: ClassVar[bool] = False

    def validate(self) -> None:
        """Raise `InputError` for a number out of range."""

    def check(self, params: Tree, plan: LeafPlan, num_classes: int) -> None:
        """Raise `InputError` if a model (given as shapes of its parameters) can't have this term.

        `num_classes` is 0 if samples have no classes.
        """

    def __call__(
        self, params: Tree, batch: ForwardedBatch, client: Client, plan: LeafPlan
    ) -> jax.Array:
        """Return the loss [] of one client's model on one minibatch.

        `batch.logits` and `batch.features` come from the forward pass of the minibatch loss. An
        extra loss with a further parameter `key` receives a separate random key in each step.
        """
        raise NotImplementedError


def proximal(mu: jax.Array | float) -> Callable[[Tree, ForwardedBatch, Tree, Client], jax.Array]:
    """Return the proximal term (mu / 2) |w - w_ref|^2 as an `extra_loss` of local training.

    The reference w_ref is passed to local training: parameters [...] for all clients, or [M, ...]
    with one row for each member:

        ctx.train(models, extra_loss=pfl.training.proximal(mu), broadcast=server["params"])
        ctx.train(models, extra_loss=pfl.training.proximal(mu), operands=own["params"])

    If both are given, w_ref is the broadcast. Its leaves that are None, such as private leaves, are
    ignored. `mu` may be traced.

    Raises:
      TypeError: neither is given, or the reference does not match the parameters.
    """

    def difference(reference: jax.Array | None, leaf: jax.Array) -> jax.Array | None:
        if reference is not None and jnp.shape(reference) != leaf.shape:
            raise ValueError(f"{jnp.shape(reference)} against {leaf.shape}")
        return None if reference is None else leaf - reference

    def loss(params: Tree, batch: ForwardedBatch, broadcast: Tree, client: Client) -> jax.Array:
        reference = client.operand if broadcast is None else broadcast
        try:
            away = jax.tree.map(difference, reference, params, is_leaf=lambda leaf: leaf is None)
        except ValueError as error:
            raise TypeError(NO_REFERENCE) from error
        if away is None:
            raise TypeError(NO_REFERENCE)
        return jnp.asarray(0.5 * mu * optax.tree.vdot(away, away))

    return loss


def weight_decay(mu: jax.Array | float, modules: Sequence[str]) -> Callable[..., Tree]:
    """Return the weight decay of some modules as a `correct` of local training.

    It adds mu w to the gradient of their parameters w:

        ctx.train(models, correct=pfl.training.weight_decay(mu, ("head", "body/dense_1")))

    `mu` may be traced.

    Raises:
      InputError: when it is applied to a model without a module of a name.
    """

    def correct(gradient: Tree, params: Tree, broadcast: Tree, client: Client) -> Tree:
        flat, _ = jax.tree_util.tree_flatten_with_path(params)
        known = [module for path, _ in flat for module in module_paths(trees.path_name(path))]
        for name in modules:
            require_name("module with weight decay", name, known)

        def decayed(path: Any, g: jax.Array, w: jax.Array) -> jax.Array:
            inside = not set(module_paths(trees.path_name(path))).isdisjoint(modules)
            return g + (mu * w).astype(g.dtype) if inside else g

        return jax.tree_util.tree_map_with_path(decayed, gradient, params)

    return correct


def classifier_kernel(params: Tree, plan: LeafPlan, num_classes: int) -> jax.Array:
    """Return the weight matrix [d, C] of the head.

    Raises:
      InputError: the head has no matrix with one column for each class.
    """
    trained = [i for i, path in enumerate(plan.paths) if trainable(path)]
    for i, leaf in zip(trained, jax.tree.leaves(params), strict=True):
        if plan.blocks[plan.block_of[i]] == plan.head and leaf.shape[1:] == (num_classes,):
            return leaf
    raise InputError(
        f"The head {plan.head!r} has no weight [features, {num_classes}]; name the classifier's "
        f"block with head=: {', '.join(plan.blocks)}."
    )


def estimated_class_shares(params: Tree, plan: LeafPlan, num_classes: int) -> jax.Array:
    """Estimate a client's class distribution from its classifier, [C].

    The estimate is the normalized L2 norms of the classifier's columns (cwFedAVG, eq. 9), without
    the bias.

    Args:
      params: one client's parameters.
      plan: names the head.
      num_classes: C.

    Raises:
      InputError: the head has no matrix with one column for each class.
    """
    kernel = classifier_kernel(params, plan, num_classes)
    norms = jnp.sqrt(jnp.sum(jnp.square(kernel), axis=0) + 1e-24)  # no 0/0 in the gradient
    return norms / jnp.sum(norms)


def weight_distribution(
    params: Tree, plan: LeafPlan, class_counts: jax.Array, weight: jax.Array | float
) -> jax.Array:
    """Return weight / 2 times the distance of class distributions (WDR).

    It is the distance between estimated and true class distributions (cwFedAVG, section 4.2). The
    norm is not squared, and the factor 1/2 is that of the published code.

    Args:
      params: one client's parameters.
      plan: names the head.
      class_counts: [C], the client's training samples of each class.
      weight: lambda.
    """
    estimated = estimated_class_shares(params, plan, class_counts.shape[0])
    true = class_counts / jnp.maximum(jnp.sum(class_counts), 1)
    gap = estimated - true.astype(estimated.dtype)
    # The square root's slope at 0 is infinite; 1e-12 keeps it finite and changes nothing else.
    return 0.5 * weight * jnp.sqrt(jnp.sum(jnp.square(gap)) + 1e-12)


@struct
class WeightDistribution(ExtraLoss):
    """The weight distribution regularizer (WDR) of cwFedAVG as an extra loss of any algorithm.

    Attributes:
      weight: lambda; 10 is the published default for CIFAR-10.
    """

    couples_samples = True  # by the client's class counts

    weight: float = 10.0

    def validate(self) -> None:
        number("wdr_weight", self.weight, "a finite number of at least 0")

    def check(self, params: Tree, plan: LeafPlan, num_classes: int) -> None:
        require_classes("The weight distribution regularizer", num_classes > 0)
        classifier_kernel(params, plan, num_classes)

    def __call__(
        self, params: Tree, batch: ForwardedBatch, client: Client, plan: LeafPlan
    ) -> jax.Array:
        return weight_distribution(params, plan, client.class_counts, self.weight)
