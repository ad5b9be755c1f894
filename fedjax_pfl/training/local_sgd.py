"""Local training: epochs or steps of SGD on each client's samples."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.data.federated import Batch
from fedjax_pfl.federation.batching import Schedule
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Cohort
from fedjax_pfl.training.client_loop import run_clients
from fedjax_pfl.training.local_step import LocalState, LocalStep, local_step
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError
from fedjax_pfl.utils.structs import Broadcast, struct
from fedjax_pfl.utils.typing import Tree


@struct
class Trained:
    """The results of local training: `models, cohort, loss = ctx.train(...)`.

    If requested, `gradient` and `optimizer_state` follow, in this order.

    Attributes:
      models: [M, ...]; diverged and inactive clients keep their initial model.
      cohort: the cohort without diverged clients, with the steps counted.
      loss: [M], mean loss of the local steps' minibatches, without empty ones of the batch order
        "poisson" (0 without steps).
      gradient: like the parameters, [M, ...], mean raw minibatch gradient over the local steps,
        before corrections, momentum and weight decay (0 without steps).
      optimizer_state: [M, ...]; diverged and inactive clients keep their initial state.
    """

    models: Tree
    cohort: Cohort
    loss: jax.Array
    gradient: Tree = None
    optimizer_state: Tree = None

    def __iter__(self) -> Iterator[Any]:
        yield from (self.models, self.cohort, self.loss)
        yield from (value for value in (self.gradient, self.optimizer_state) if value is not None)


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
    epochs: jax.Array | None = None,
    optimizer_state: Tree = None,
    begun: jax.Array | bool | None = None,
    **step_options: Any,
) -> Trained:
    """Train a cohort locally from `models` [M, ...], or from one `Broadcast` model.

    Args:
      federation: the clients and their training options.
      models: initial models.
      cohort: who trains.
      key: the round's key for this purpose.
      learning_rate: [], learning rate of all local steps.
      schedule: batches and their order; the federation's by default.
      broadcast, operands, cursor, epochs: see `run_clients`.
      active: bool [M], the members that train; the cohort's mask by default.
      optimizer_state: [M, ...], states of the local optimizers from earlier rounds, returned
        updated; by default optimizers are reinitialized in each round.
      begun: bool [M], the members to which `optimizer_state` applies; other optimizers are
        initialized. False: all are initialized, and their states are returned.
      **step_options: `extra_loss`, `forward`, `correct`, `trainable`, `mean_gradient`,
        `updates_per_batch`, `noise_index`, see `LocalStep`.

    Raises:
      TypeError: a stack does not lead with one row for each member, or `optimizer_state` belongs to
        another optimizer or other leaves.
    """
    if cohort.parent is not None:
        data = federation.data.narrowed(cohort.parent, cohort.rows)
        federation = replace(federation, data=data)
    step = local_step(federation, learning_rate, step_options)
    if not isinstance(models, Broadcast):
        hint = f"One model for all is Broadcast(model). {trees.MEMBERS}"
        trees.check_rows("models to train", models, cohort.size, hint)
    elif optimizer_state is not None or begun is not None:  # clients begin with different states
        models = trees.replicate(models.model, cohort.size)
    carry = step.begin_all(models)
    if optimizer_state is not None:
        assert isinstance(carry, LocalState)  # each client has a model of its own by now
        trees.check_rows("states of local optimizers", optimizer_state, cohort.size)
        if jax.tree.structure(optimizer_state) != jax.tree.structure(carry.optimizer):
            raise TypeError(
                "optimizer_state must be that of the optimizer that trains, over the leaves that "
                "it trains: begin with ctx.initial_optimizer_state(trainable=...), with the same "
                "trainable as in ctx.train."
            )
        if begun is not None:
            optimizer_state = trees.where(jnp.asarray(begun), optimizer_state, carry.optimizer)
        carry = replace(carry, optimizer=optimizer_state)
    if active is None and not cohort.complete:
        active = cohort.mask

    schedule = schedule or federation.schedule
    filled = jnp.int32(0) if schedule.poisson else None  # the number of minibatches with samples
    if isinstance(carry, Broadcast):
        carry = Broadcast((carry.model, filled))
    else:
        carry = carry, trees.replicate(filled, cohort.size)

    def counted(carry: tuple[LocalState, jax.Array | None], batch: Batch, *others: Any):
        state, filled = carry
        filled = None if filled is None else filled + jnp.any(batch.valid)
        return step(state, batch, *others), filled

    def finish(carry: tuple[LocalState, jax.Array | None], client: Client):
        (state, filled), steps = carry, jnp.maximum(client.num_steps, 1)
        mean = jax.tree.map(lambda total: total / steps.astype(total.dtype), state.gradient)
        memory = None if optimizer_state is None and begun is None else state.optimizer
        loss = state.loss / (steps if filled is None else jnp.maximum(filled, 1))
        return state.model, loss, mean, memory

    (trained, loss, gradient, memory), finite, steps = run_clients(
        federation,
        counted,
        carry,
        rows=cohort.maybe_static_rows,
        key=key,
        schedule=schedule,
        broadcast=broadcast,
        operands=operands,
        active=active,
        cursor=cursor,
        epochs=epochs,
        finish=finish,
    )
    cohort = cohort.mark_diverged(finite, steps * step.updates_per_batch)
    return Trained(trained, cohort, loss, gradient, memory)


def full_gradient(
    federation: Federation, models: Tree, cohort: Cohort, key: jax.Array
) -> tuple[Tree, Cohort]:
    """Return the gradient of each client's loss over all its training samples, [M, ...].

    The federation's extra loss is included. The gradient is summed over minibatches to bound
    memory. Normalization statistics are not updated, and samples are not augmented.

    Returns:
      (gradients, the cohort without clients whose gradient is not finite, with one step counted for
      each minibatch).

    Raises:
      InputError: with sample-level differential privacy, whose noise is of minibatches.
    """
    if federation.sample_privacy is not None:
        raise InputError(
            "A gradient over all samples of a client has no place in sample-level differential "
            "privacy, whose noise is of minibatches: leave dp='sample' out."
        )
    federation = federation.replace_training(augment=None)
    local = LocalStep(federation, federation.training.learning_rate)

    def step(total, batch: Batch, rng, broadcast, client: Client):
        gradient = local.loss_and_gradient(client.operand, batch, rng, broadcast, client).gradient
        part = jnp.sum(batch.valid) / client.size
        return jax.tree.map(lambda t, g: t + (part * g).astype(t.dtype), total, gradient)

    gradients, finite, steps = run_clients(
        federation,
        step,
        jax.tree.map(jnp.zeros_like, models["params"]),
        rows=cohort.maybe_static_rows,
        key=key,
        schedule=federation.schedule.one_pass(),
        operands=models,
        active=cohort.mask,
    )
    return gradients, cohort.mark_diverged(finite, steps)
