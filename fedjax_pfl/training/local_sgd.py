"""What a client does between download and upload: epochs or steps of SGD on its own samples."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import trees
from fedjax_pfl.data.federated import Batch
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.federation.schedules import Schedule
from fedjax_pfl.structs import Broadcast, struct
from fedjax_pfl.training.client_loop import run_clients
from fedjax_pfl.typing import Tree


@struct
class LocalState:
    """Carry of the ready-made step: a model, its optimizer's state, sums of loss and gradient."""

    model: Tree
    optimizer: Tree
    loss: jax.Array
    gradient: Tree  # None unless asked for


class Trained(NamedTuple):
    """What local training returns.

    Attributes:
      models: [M, ...]; a client that diverged or stayed inactive holds the model it began with.
      cohort: the cohort without those whose training went non-finite, the steps counted.
      loss: [M], mean over the local steps of the minibatch loss (0 without steps).
    """

    models: Tree
    cohort: Cohort
    loss: jax.Array


class TrainedWithGradient(NamedTuple):
    """`Trained`, and the mean of the minibatch gradients that were met on the way.

    Attributes:
      gradient: like the parameters, [M, ...]: raw gradients, before corrections, momentum or
        decay (0 without steps).
    """

    models: Tree
    cohort: Cohort
    loss: jax.Array
    gradient: Tree


def sgd_step(
    federation: Federation,
    learning_rate: jax.Array,
    *,
    extra_loss: Callable[[Tree, Batch, Tree, Client], jax.Array] | None = None,
    correct: Callable[[Tree, Tree, Tree, Client], Tree] | None = None,
    trainable: Tree | None = None,
    mean_gradient: bool = False,
    updates_per_batch: int = 1,
) -> tuple[Callable, Callable]:
    """One minibatch of the local optimizer, for `run_clients`.

    Args:
      federation: task, optimizer, and the extra loss of all algorithms.
      learning_rate: scalar.
      extra_loss: `extra_loss(params, batch, broadcast, client)`, added to the minibatch loss.
      correct: `correct(gradient, params, broadcast, client)`, the gradient to use instead.
      trainable: tree of booleans like the parameters; False leaves stay as they are, and the
        optimizer does not know them. By default all but the plan's frozen leaves.
      mean_gradient: also sum up the raw minibatch gradients.
      updates_per_batch: steps taken one after the other on the same minibatch, the gradient
        computed anew for each; losses and gradients are averaged over them.

    Returns:
      (begin, step): `begin(model)` makes the `LocalState` that `step` carries.
    """
    task = federation.task
    frozen = trainable is None and any(federation.plan.frozen)

    def optimizer(moves: Tree | None) -> optax.GradientTransformation:
        whole = federation.optimizer(learning_rate)
        return whole if moves is None else optax.masked(whole, moves)

    def moving(model: Tree) -> Tree | None:
        if not frozen:
            return trainable
        return jax.tree.map(lambda stays: not stays, federation.plan.frozen_mask(model)["params"])

    def begin(model: Tree) -> LocalState:
        zero = jnp.zeros((), task.dtype)
        total = jax.tree.map(jnp.zeros_like, model["params"]) if mean_gradient else None
        memory = optimizer(moving(model)).init(model["params"])
        return LocalState(model, memory, zero, total)

    def update(state: LocalState, batch: Batch, rng, broadcast, client: Client) -> LocalState:
        def objective(params):
            loss, model = task.loss({**state.model, "params": params}, batch, rng)
            extra = 0 if extra_loss is None else extra_loss(params, batch, broadcast, client)
            penalty = federation.penalty(params, batch, client)
            return loss + extra + penalty, (loss, model)

        params = state.model["params"]
        gradient, (loss, model) = jax.grad(objective, has_aux=True)(params)
        total = None
        if mean_gradient:
            total = jax.tree.map(lambda t, g: t + g / updates_per_batch, state.gradient, gradient)
        if correct is not None:
            gradient = correct(gradient, params, broadcast, client)
        moves = moving(model)
        updates, memory = optimizer(moves).update(gradient, state.optimizer, params)
        if moves is not None:
            updates = jax.tree.map(lambda u, on: u if on else jnp.zeros_like(u), updates, moves)
        model = {**model, "params": optax.apply_updates(params, updates)}
        if frozen:  # their running statistics too
            stays = federation.plan.frozen_mask(model)
            model = jax.tree.map(lambda new, old, on: old if on else new, model, state.model, stays)
        return LocalState(model, memory, state.loss + loss / updates_per_batch, total)

    def step(state: LocalState, batch: Batch, rng, broadcast, client: Client) -> LocalState:
        for k in range(updates_per_batch):  # one or two: unrolled
            noise = rng if k == 0 else jax.random.fold_in(rng, k)
            state = update(state, batch, noise, broadcast, client)
        return state

    return begin, step


def train(
    federation: Federation,
    models: Tree | Broadcast,
    cohort: Cohort,
    *,
    key: jax.Array,
    learning_rate: jax.Array,
    schedule: Schedule | None = None,
    broadcast: Tree = None,
    operands: Tree = None,
    active: jax.Array | None = None,
    cursor: jax.Array | None = None,
    **step_options,
) -> Trained | TrainedWithGradient:
    """Local training of a cohort from `models` [M, ...], or from one `Broadcast` model.

    Args:
      key: the round's key for this purpose.
      schedule: batches and their order; the federation's by default.
      broadcast, operands, cursor: see `run_clients`.
      active: bool [M], who trains; the cohort's mask by default.
      **step_options: `extra_loss`, `correct`, `trainable`, `mean_gradient`, `updates_per_batch` of
        `sgd_step`.
    """
    begin, step = sgd_step(federation, learning_rate, **step_options)
    if isinstance(models, Broadcast):
        carry = Broadcast(begin(models.model))
    else:
        hint = f"One model for all is Broadcast(model). {trees.MEMBERS}"
        trees.check_rows("models to train", models, cohort.size, hint)
        carry = jax.vmap(begin)(models)
    if active is None and not cohort.complete:
        active = cohort.mask

    def finish(state: LocalState, client: Client):
        steps = jnp.maximum(client.num_steps, 1)
        mean = jax.tree.map(lambda total: total / steps.astype(total.dtype), state.gradient)
        return state.model, state.loss / steps, mean

    (trained, loss, gradient), finite, steps = run_clients(
        federation,
        step,
        carry,
        rows=cohort.rows,
        key=key,
        schedule=schedule or federation.schedule,
        broadcast=broadcast,
        operands=operands,
        active=active,
        cursor=cursor,
        finish=finish,
    )
    cohort = cohort.keep(finite, steps * step_options.get("updates_per_batch", 1))
    if gradient is None:
        return Trained(trained, cohort, loss)
    return TrainedWithGradient(trained, cohort, loss, gradient)


def full_gradient(
    federation: Federation, models: Tree, cohort: Cohort, key: jax.Array
) -> tuple[Tree, Cohort]:
    """Gradient of each client's loss over all its training samples, like the parameters [M, ...].

    The federation's extra loss is part of it.

    Summed over minibatches, so that no batch is as large as a client. Statistics of normalisation
    layers stay as they are, and samples are not augmented.

    Returns:
      (gradients, the cohort without those whose gradient is not finite, one step counted for each
      minibatch).
    """
    task = federation.task
    federation = replace(federation, augment=None)
    schedule = replace(federation.schedule, epochs=1, steps=None, shuffle=False, drop_last=False)

    def step(total, batch: Batch, rng, broadcast, client: Client):
        model = client.operand

        def mean_loss(params):
            loss = task.loss({**model, "params": params}, batch, rng)[0]
            return loss + federation.penalty(params, batch, client)

        part = jnp.sum(batch.valid) / client.size
        gradient = jax.grad(mean_loss)(model["params"])
        return jax.tree.map(lambda t, g: t + (part * g).astype(t.dtype), total, gradient)

    gradients, finite, steps = run_clients(
        federation,
        step,
        jax.tree.map(jnp.zeros_like, models["params"]),
        rows=cohort.rows,
        key=key,
        schedule=schedule,
        operands=models,
        active=cohort.mask,
    )
    return gradients, cohort.keep(finite, steps)
