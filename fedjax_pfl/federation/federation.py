"""The federation: task, data, local training and execution, as one pytree."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.aggregation.leaf_plan import LeafPlan
from fedjax_pfl.aggregation.sharing import Rule
from fedjax_pfl.data.federated import Batch, FederatedData
from fedjax_pfl.execution.strategy import Execution
from fedjax_pfl.federation.augmentation import Augmentation
from fedjax_pfl.federation.client import Client
from fedjax_pfl.federation.extra_losses import ExtraLoss
from fedjax_pfl.federation.participation import Participation
from fedjax_pfl.federation.schedules import Schedule
from fedjax_pfl.models.heads import PERSONAL_HEAD, TwoHeads, check_features, two_heads
from fedjax_pfl.models.task import Task
from fedjax_pfl.structs import static, struct
from fedjax_pfl.typing import Tree


@struct
class Federation:
    """Everything an algorithm may ask of its surroundings.

    Passed to compiled functions as an argument, never closed over: a closed-over data set would
    be copied into the program.

    Attributes:
      data: the clients' data, on the device.
      participation: sampling and stragglers.
      learning_rate: local learning rate of the first round.
      learning_rate_decay: factor by which it shrinks from one round to the next.
      task: one client's network and loss.
      plan: blocks of the model and what is shared.
      schedule: local epochs or steps.
      optimizer: factory `learning_rate -> optax.GradientTransformation`.
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
    optimizer: Callable = static()
    execution: Execution = static()
    eval_batch_size: int = static()
    augment: Augmentation | None = static(None)
    extra_loss: ExtraLoss | None = None

    @property
    def num_clients(self) -> int:
        return self.data.num_clients

    def steps(self) -> np.ndarray:
        """int64 [N]: local steps of each client that takes part in a round, by the schedule."""
        return self.schedule.total_steps(np.asarray(self.data.train.size).astype(np.int64))

    def with_personal_head(self, fresh: bool = False) -> "Federation":
        """The federation whose models have a second head, which stays with its client.

        Its block is called "personal_head", its task is a `TwoHeads`. A federation that has one
        already stays as it is.

        Args:
          fresh: the second head begins with weights of its own, not with the first one's.

        Raises:
          InputError: the model does not say what its features and its head are.
        """
        if isinstance(self.task, TwoHeads):
            return self
        sample = self.data.samples.shape[1:]
        inputs = jax.ShapeDtypeStruct((2, *sample), self.data.input_dtype(self.task.dtype))
        key = jax.random.key(0)
        check_features(self.task, jax.eval_shape(self.initial_model, key), inputs)
        changed = replace(self, task=two_heads(self.task, fresh))
        model = jax.eval_shape(changed.initial_model, key)
        return replace(changed, plan=self.plan.with_personal_head(model, PERSONAL_HEAD))

    def frozen(self, rule: Rule) -> "Federation":
        """The federation in which no round trains the leaves that a rule names, such as "head".

        They keep their first values with everybody, statistics included, and don't travel. The
        local steps of an adaptation do train them.

        Raises:
          InputError: no such rule, or it leaves nothing to train.
        """
        return replace(self, plan=self.plan.with_frozen(rule))

    def penalty(self, params: Tree, batch: Batch, client: Client) -> jax.Array | int:
        """The extra loss of one client's model on one minibatch; 0 where there is none."""
        return 0 if self.extra_loss is None else self.extra_loss(params, batch, client, self.plan)

    def initial_model(self, key: jax.Array) -> Tree:
        """A fresh model of one client."""
        return initial_model(self.task, self.data, key)


def initial_model(task: Task, data: FederatedData, key: jax.Array) -> Tree:
    """A fresh model of one client for the data's samples."""
    shape = (1, *data.samples.shape[1:])
    return task.initial_model(key, jnp.zeros(shape, data.input_dtype(task.dtype)))
