"""The federation: task, data, local training and execution, as one pytree."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation import planning
from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.data.federated import FederatedData
from fedjax_pfl.errors import InputError, refused, require
from fedjax_pfl.execution.packing import fitted
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.federation.augmentation import Augmentation
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.extra_losses import ExtraLoss
from fedjax_pfl.federation.local_training import LocalTraining
from fedjax_pfl.federation.participation import Participation
from fedjax_pfl.federation.schedules import Schedule
from fedjax_pfl.models.heads import PERSONAL_HEAD, TwoHeads, check_features, two_heads
from fedjax_pfl.models.mixtures import mixture
from fedjax_pfl.models.task import ForwardedBatch, Task
from fedjax_pfl.structs import static, struct
from fedjax_pfl.typing import Tree


@struct
class Federation:
    """Everything that an algorithm may use.

    Passed to compiled functions as an argument, never closed over: a closed-over data set would
    be copied into the program.

    Attributes:
      data: the clients' data, on the device.
      participation: sampling and stragglers.
      learning_rate: local learning rate of the first round.
      learning_rate_decay: factor by which it shrinks from one round to the next.
      learning_rate_schedule: `(t, total) -> factor` of the rate in round `t` (from 0) of `total`,
        both traced, or None.
      task: one client's network and loss.
      plan: blocks of the model and what is shared.
      schedule: local epochs or steps.
      optimizer: factory `learning_rate -> optax.GradientTransformation`.
      batch_order: how a client's training samples lie and are drawn, see `LocalTraining`.
      execution: how the client axis is run.
      eval_batch_size: samples scored at once.
      augment: random change of the training images, or None.
      extra_loss: added to every client's minibatch loss, or None.
    """

    data: FederatedData
    participation: Participation
    learning_rate: jax.Array
    learning_rate_decay: jax.Array
    task: Task = static()
    plan: LeafPlan = static()
    schedule: Schedule = static()
    batch_order: str = static()
    optimizer: Callable[..., Any] = static()
    execution: Execution = static()
    eval_batch_size: int = static()
    augment: Augmentation | None = static(default=None)
    extra_loss: ExtraLoss | None = None
    learning_rate_schedule: Callable[..., Any] | None = static(default=None)

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    def rate(self, t: jax.Array, total: jax.Array) -> jax.Array:
        """The local learning rate of round `t` of `total`; traced."""
        decay = self.learning_rate_decay
        rate = self.learning_rate * decay ** t.astype(decay.dtype)
        if self.learning_rate_schedule is None:
            return rate
        return rate * jnp.asarray(self.learning_rate_schedule(t, total), rate.dtype)

    def rate_factors(self, total: int) -> np.ndarray:
        """The schedule's factors of the rate in each round, [total]; empty without a schedule.

        Raises:
          InputError: it can't be traced, or a factor is not one finite number of at least 0.
        """
        schedule = self.learning_rate_schedule
        if schedule is None:
            return np.ones(0)
        name, allowed = (
            "learning_rate_schedule",
            "a function (t, total) -> factor of traced numbers",
        )
        try:
            factors = jax.jit(jax.vmap(schedule, (0, None)))(
                np.arange(total, dtype=np.int32), total
            )
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise InputError(f"{name} must be {allowed}: {reason}") from error
        shape = list(factors.shape[1:])
        require(not shape, name, f"a factor of shape {shape}", allowed)
        bad = np.flatnonzero(~(np.isfinite(factors) & (factors >= 0)))
        if len(bad):
            allowed = "finite and at least 0 in each round"
            raise refused(name, f"{factors[bad[0]]} in round {bad[0] + 1}", allowed)
        return factors

    @property
    def training(self) -> LocalTraining:
        """The options of local training that made it; not for use in compiled functions."""
        return LocalTraining.of(self)

    def with_training(self, **options: Any) -> "Federation":
        """The same data, model and clients, with other options of local training.

        Args:
          **options: those of `LocalTraining`; the others stay. Epochs take the place of steps, and
            an optimizer that of momentum and weight decay. `batch_order` can't change: the samples
            are stored in that order.

        Raises:
          InputError: no such option, or a value that is not allowed.
        """
        order = options.get("batch_order", self.batch_order)
        require(order == self.batch_order, "batch_order", order, f"{self.batch_order!r}, as it is")
        training = self.training.changed(**options).checked()
        params = jax.eval_shape(self.initial_model, jax.random.key(0))["params"]
        changed = replace(self, **training.parts(self.data, self.plan, params, self.task.dtype))
        return replace(
            changed, execution=fitted(replace(self.execution, fill=1.0), changed.steps())
        )

    def steps(self) -> np.ndarray:
        """int64 [N]: local steps of each client that takes part in a round, by the schedule."""
        return self.schedule.total_steps(np.asarray(self.data.train.size).astype(np.int64))

    @property
    def num_features(self) -> int:
        """d of the features [B, d] that the head sees; nothing is computed.

        An algorithm whose loss needs features asks in its `check`: before anything is compiled.

        Raises:
          InputError: the model does not say what its features are.
        """
        data, task = self.data, self.task
        model = jax.eval_shape(lambda: self.initial_model(jax.random.key(0)))
        shape = (1, *data.sample_shape)
        inputs = jax.ShapeDtypeStruct(shape, data.input_dtype(task.dtype))
        return jax.eval_shape(task.features, model, inputs).shape[-1]

    def with_personal_head(self, fresh: bool = False) -> "Federation":
        """The federation whose models have a second head, which stays with its client.

        Its block is called "personal_head", its task is a `TwoHeads`. A federation that has one
        already is returned unchanged.

        Args:
          fresh: the second head begins with new weights, not with the first head's.

        Raises:
          InputError: the model does not say what its features and its head are.
        """
        if isinstance(self.task, TwoHeads):
            return self
        sample = self.data.sample_shape
        inputs = jax.ShapeDtypeStruct((2, *sample), self.data.input_dtype(self.task.dtype))
        key = jax.random.key(0)
        check_features(self.task, jax.eval_shape(self.initial_model, key), inputs)
        changed = replace(self, task=two_heads(self.task, fresh))
        model = jax.eval_shape(changed.initial_model, key)
        return replace(changed, plan=planning.with_personal_head(self.plan, model, PERSONAL_HEAD))

    def with_mixtures(self) -> "Federation":
        """The federation in which a pair of models is a model whose logits are mixed (`pairs`).

        Its task is a `Mixture`, and its models begin as they would. A federation that has one
        already is returned unchanged.
        """
        return replace(self, task=mixture(self.task))

    def frozen(self, rule: Rule) -> "Federation":
        """The federation in which no round trains the leaves that a rule names, such as "head".

        All clients keep their initial values, statistics included, and never send them. The local
        steps of an adaptation do train them, and so do those of new clients.

        Raises:
          InputError: no such rule, or it leaves nothing to train.
        """
        return replace(self, plan=self.plan.with_frozen(rule))

    def penalty(self, params: Tree, batch: ForwardedBatch, client: Client) -> jax.Array | int:
        """The extra loss of one client's model on one minibatch; 0 where there is none."""
        return 0 if self.extra_loss is None else self.extra_loss(params, batch, client, self.plan)

    def initial_model(self, key: jax.Array) -> Tree:
        """A fresh model of one client."""
        return initial_model(self.task, self.data, key)


def initial_model(task: Task, data: FederatedData, key: jax.Array) -> Tree:
    """A fresh model of one client for the data's samples."""
    shape = (1, *data.sample_shape)
    return task.initial_model(key, jnp.zeros(shape, data.input_dtype(task.dtype)))
